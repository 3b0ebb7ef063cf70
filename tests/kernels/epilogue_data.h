// Epilogues for tests: the kinds that every kernel must do, their operands, and the bits that they
// must give.
#ifndef TCGEMM_TESTS_KERNELS_EPILOGUE_DATA_H_
#define TCGEMM_TESTS_KERNELS_EPILOGUE_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "matrix/epilogue.h"
#include "matrix/matrix.h"

namespace tcgemm {

enum class BiasAxis { kNone, kRow, kColumn };

struct EpilogueCase {
  float alpha = 1;
  float beta = 0;
  DType c_dtype = DType::kBf16;
  BiasAxis bias = BiasAxis::kNone;
  DType bias_dtype = DType::kBf16;
  Activation activation = Activation::kNone;

  std::string ToString() const;
};
// Each step alone, each type and axis, and all together.
std::vector<EpilogueCase> EpilogueCases();

// C (there also where beta is 0, all NaN: nobody may read it) and the bias of a case, seeded
// normals, with NaN in the `gap` elements between rows.
struct EpilogueData {
  EpilogueData(const EpilogueCase& epilogue_case, const EpilogueShape& d, int64_t gap,
               uint64_t seed);
  Epilogue View() const;

  EpilogueCase epilogue_case;
  Matrix c;
  Matrix bias;
};

// The bits that D must have, row by row, given those of the same product in fp32 without an
// epilogue; those of bf16 are not moved up.
std::vector<uint32_t> ForetellBits(const std::vector<uint32_t>& sums, const Epilogue& epilogue,
                                   const EpilogueShape& d, DType output);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_KERNELS_EPILOGUE_DATA_H_
