// The epilogue on runs of fp32 sums, for whatever vectors the CPU has. Not public. Bits are the
// same on every instruction set, and those of kernels/tile/element_epilogue.h.
#ifndef TCGEMM_KERNELS_CPU_EPILOGUE_H_
#define TCGEMM_KERNELS_CPU_EPILOGUE_H_

#include <cstdint>

#include "matrix/epilogue.h"

namespace tcgemm {

// A piece of one row of D.
struct RowRun {
  int64_t row = 0;
  int64_t column = 0;  // of the first element
  int64_t count = 0;
};

// Turns the sums of `run` into what is rounded to D's type, in place. The epilogue is valid for a D
// of shape `d`.
void ApplyEpilogueToRun(const Epilogue& epilogue, const EpilogueShape& d, const RowRun& run,
                        float* values);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CPU_EPILOGUE_H_
