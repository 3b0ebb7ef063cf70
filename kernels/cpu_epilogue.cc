#include "kernels/cpu_epilogue.h"

#include "kernels/cpu_vectors.h"
#include "kernels/tile/activation.h"

namespace tcgemm {
namespace {

// Reads what is added as fp32, exactly.
TCGEMM_ALWAYS_INLINE float Widened(float value) { return value; }
TCGEMM_ALWAYS_INLINE float Widened(uint16_t bits) {
  return FloatOf(static_cast<uint32_t>(bits) << 16);
}

template <int W>
TCGEMM_ALWAYS_INLINE void ScaleRunBody(float alpha, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = MultiplyRn(alpha, values[i]);
}

// values += beta·addends; with beta = 1 the product is exact: what a bias is added with.
template <int W, typename T>
TCGEMM_ALWAYS_INLINE void AddRun(float beta, const T* __restrict addends, int64_t count,
                                 float* __restrict values) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = AddRn(values[i], MultiplyRn(beta, Widened(addends[i])));
  }
}

template <int W>
TCGEMM_ALWAYS_INLINE void AddBf16RunBody(float beta, const uint16_t* addends, int64_t count,
                                         float* values) {
  AddRun<W>(beta, addends, count, values);
}

template <int W>
TCGEMM_ALWAYS_INLINE void AddFp32RunBody(float beta, const float* addends, int64_t count,
                                         float* values) {
  AddRun<W>(beta, addends, count, values);
}

template <int W>
TCGEMM_ALWAYS_INLINE void AddToRunBody(float addend, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = AddRn(values[i], addend);
}

template <int W>
TCGEMM_ALWAYS_INLINE void ActivateRunBody(Activation activation, int64_t count, float* values) {
  if (activation == Activation::kRelu) {
    for (int64_t i = 0; i < count; ++i) values[i] = Relu(values[i]);
  } else if (activation == Activation::kGelu) {
    for (int64_t i = 0; i < count; ++i) values[i] = Gelu(values[i]);
  } else if (activation == Activation::kSilu) {
    for (int64_t i = 0; i < count; ++i) values[i] = Silu(values[i]);
  }
}

}  // namespace

TCGEMM_MULTIVERSION(static void, ScaleRun, (float alpha, int64_t count, float* values),
                    (alpha, count, values))
TCGEMM_MULTIVERSION(static void, AddBf16Run,
                    (float beta, const uint16_t* addends, int64_t count, float* values),
                    (beta, addends, count, values))
TCGEMM_MULTIVERSION(static void, AddFp32Run,
                    (float beta, const float* addends, int64_t count, float* values),
                    (beta, addends, count, values))
TCGEMM_MULTIVERSION(static void, AddToRun, (float addend, int64_t count, float* values),
                    (addend, count, values))
TCGEMM_MULTIVERSION(static void, ActivateRun, (Activation activation, int64_t count, float* values),
                    (activation, count, values))

namespace {

void AddViewRun(float beta, const MatrixView& view, const RowRun& run, float* values) {
  const int64_t at = view.IndexOf(run.row, run.column);
  if (view.dtype == DType::kBf16) {
    AddBf16Run(beta, static_cast<const uint16_t*>(view.data) + at, run.count, values);
  } else {
    AddFp32Run(beta, static_cast<const float*>(view.data) + at, run.count, values);
  }
}

}  // namespace

void ApplyEpilogueToRun(const Epilogue& epilogue, const EpilogueShape& d, const RowRun& run,
                        float* values) {
  ScaleRun(epilogue.alpha, run.count, values);
  if (epilogue.reads_c()) AddViewRun(epilogue.beta, epilogue.c, run, values);
  if (epilogue.has_bias()) {
    const MatrixView& bias = epilogue.bias;
    if (BiasIsColumn(bias, d)) {
      const int64_t at = bias.IndexOf(run.row, 0);
      AddToRun(bias.dtype == DType::kBf16 ? Widened(static_cast<const uint16_t*>(bias.data)[at])
                                          : static_cast<const float*>(bias.data)[at],
               run.count, values);
    } else {
      AddViewRun(1.0f, bias, {.column = run.column, .count = run.count}, values);
    }
  }
  ActivateRun(epilogue.activation, run.count, values);
}

}  // namespace tcgemm
