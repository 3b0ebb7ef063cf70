#include "tests/kernels/epilogue_data.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/tile/element_epilogue.h"
#include "kernels/tile/epilogue.h"

namespace tcgemm {

std::string EpilogueCase::ToString() const {
  const char* const axes[] = {"none", "row", "column"};
  return absl::StrCat("alpha ", alpha, " beta ", beta, " c ", std::string(DTypeName(c_dtype)),
                      " bias ", axes[static_cast<int>(bias)], " ",
                      std::string(DTypeName(bias_dtype)), " ", ActivationName(activation));
}

std::vector<EpilogueCase> EpilogueCases() {
  constexpr DType kBf16 = DType::kBf16;
  constexpr DType kFp32 = DType::kFp32;
  return {
      {.alpha = -1.7f},
      {.beta = 1, .c_dtype = kFp32},
      {.alpha = 0.3f, .beta = -0.7f, .c_dtype = kBf16},
      {.bias = BiasAxis::kRow, .bias_dtype = kBf16},
      {.bias = BiasAxis::kRow, .bias_dtype = kFp32},
      {.bias = BiasAxis::kColumn, .bias_dtype = kBf16},
      {.bias = BiasAxis::kColumn, .bias_dtype = kFp32},
      {.activation = Activation::kRelu},
      {.activation = Activation::kGelu},
      {.activation = Activation::kSilu},
      {.alpha = 0.1f, .bias = BiasAxis::kRow, .activation = Activation::kGelu},
      {.alpha = 0.11f,
       .beta = 0.9f,
       .c_dtype = kFp32,
       .bias = BiasAxis::kRow,
       .bias_dtype = kFp32,
       .activation = Activation::kSilu},
      {.alpha = 0.2f,
       .beta = -1.1f,
       .c_dtype = kBf16,
       .bias = BiasAxis::kColumn,
       .activation = Activation::kGelu},
      {.alpha = 0, .beta = 2, .c_dtype = kBf16, .bias = BiasAxis::kRow},
      {.alpha = 0},
  };
}

EpilogueData::EpilogueData(const EpilogueCase& the_case, const EpilogueShape& d, int64_t gap,
                           uint64_t seed)
    : epilogue_case(the_case), c(d.m, d.n, std::max<int64_t>(1, d.n + gap), the_case.c_dtype) {
  if (epilogue_case.beta != 0) {
    FillNormal(c, seed);
  } else {
    FillBytes(c, 0xff);
  }
  if (epilogue_case.bias == BiasAxis::kRow) {
    bias = Matrix(1, d.n, std::max<int64_t>(1, d.n + gap), epilogue_case.bias_dtype);
  } else if (epilogue_case.bias == BiasAxis::kColumn) {
    bias = Matrix(d.m, 1, 1 + gap, epilogue_case.bias_dtype);
  }
  if (epilogue_case.bias != BiasAxis::kNone) FillNormal(bias, seed + 1);
}

Epilogue EpilogueData::View() const {
  Epilogue epilogue;
  epilogue.alpha = epilogue_case.alpha;
  epilogue.beta = epilogue_case.beta;
  epilogue.c = c.view();
  if (epilogue_case.bias != BiasAxis::kNone) epilogue.bias = bias.view();
  epilogue.activation = epilogue_case.activation;
  return epilogue;
}

std::vector<uint32_t> ForetellBits(const std::vector<uint32_t>& sums, const Epilogue& epilogue,
                                   const EpilogueShape& d, DType output) {
  const ElementEpilogue element = {.alpha = epilogue.alpha,
                                   .beta = epilogue.beta,
                                   .reads_c = epilogue.reads_c(),
                                   .has_bias = epilogue.has_bias(),
                                   .activation = epilogue.activation};
  const bool column = epilogue.has_bias() && BiasIsColumn(epilogue.bias, d);
  std::vector<uint32_t> bits(sums.size());
  for (int64_t i = 0; i < d.m; ++i) {
    for (int64_t j = 0; j < d.n; ++j) {
      const float sum = epilogue.alpha == 0 ? 0.0f : std::bit_cast<float>(sums[i * d.n + j]);
      const double c = element.reads_c ? ElementAt(epilogue.c, i, j) : 0;
      const double bias =
          element.has_bias ? ElementAt(epilogue.bias, column ? i : 0, column ? 0 : j) : 0;
      const float value = element.Apply(sum, static_cast<float>(c), static_cast<float>(bias));
      bits[i * d.n + j] = output == DType::kBf16 ? Bf16Output(value) : Fp32Output(value);
    }
  }
  return bits;
}

}  // namespace tcgemm
