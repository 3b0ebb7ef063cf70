#include "tests/kernels/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "matrix/reference.h"

namespace tcgemm {
namespace {

constexpr int64_t kGuardBytes = 256;

Matrix MakeOperand(int64_t op_rows, int64_t op_cols, bool transposed, int64_t gap, uint64_t seed) {
  const int64_t rows = transposed ? op_cols : op_rows;
  const int64_t cols = transposed ? op_rows : op_cols;
  Matrix matrix(rows, cols, std::max<int64_t>(1, cols + gap), DType::kBf16);
  FillNormal(matrix, seed);
  return matrix;
}

int64_t At(const Matrix& matrix, bool transposed, int64_t i, int64_t j) {
  return transposed ? j * matrix.ld() + i : i * matrix.ld() + j;
}

}  // namespace

Product::Product(const GemmShape& shape, const ProductOptions& options)
    : shape_(shape),
      options_(options),
      a_(MakeOperand(shape.m, shape.k, options.a_transposed, options.gap, options.seed * 2)),
      b_(MakeOperand(shape.k, shape.n, options.b_transposed, options.gap, options.seed * 2 + 1)) {}

Product::Product(const Product& other, const ProductOptions& options)
    : Product(other.shape_, options) {
  for (int64_t k = 0; k < shape_.k; ++k) {
    for (int64_t i = 0; i < shape_.m; ++i) SetA(i, k, other.GetA(i, k));
    for (int64_t j = 0; j < shape_.n; ++j) SetB(k, j, other.GetB(k, j));
  }
}

void Product::SetA(int64_t i, int64_t k, uint16_t bits) {
  a_.data<uint16_t>()[At(a_, options_.a_transposed, i, k)] = bits;
}
void Product::SetB(int64_t k, int64_t j, uint16_t bits) {
  b_.data<uint16_t>()[At(b_, options_.b_transposed, k, j)] = bits;
}
uint16_t Product::GetA(int64_t i, int64_t k) const {
  return a_.data<uint16_t>()[At(a_, options_.a_transposed, i, k)];
}
uint16_t Product::GetB(int64_t k, int64_t j) const {
  return b_.data<uint16_t>()[At(b_, options_.b_transposed, k, j)];
}

MatrixView Product::d() const {
  return {d_memory_.data() + kGuardBytes,
          shape_.m,
          shape_.n,
          std::max<int64_t>(1, shape_.n + options_.gap),
          options_.output,
          false};
}

GemmProblem Product::Prepare() {
  const int64_t ld = std::max<int64_t>(1, shape_.n + options_.gap);
  const int64_t elements = shape_.m * ld * static_cast<int64_t>(DTypeSize(options_.output));
  d_memory_.assign(elements + 2 * kGuardBytes, std::byte{0xff});
  nonfinite_ = 0;
  GemmProblem problem;
  problem.a = options_.a_transposed ? a_.transposed_view() : a_.view();
  problem.b = options_.b_transposed ? b_.transposed_view() : b_.view();
  problem.d = {d_memory_.data() + kGuardBytes, shape_.m, shape_.n, ld, options_.output, false};
  problem.epilogue = epilogue_;
  problem.nonfinite = &nonfinite_;
  return problem;
}

std::vector<uint32_t> Product::TakeBits() const {
  const int64_t size = static_cast<int64_t>(DTypeSize(options_.output));
  std::vector<std::byte> rest = d_memory_;
  std::vector<uint32_t> bits(shape_.m * shape_.n, 0);
  const MatrixView view = d();
  for (int64_t i = 0; i < shape_.m; ++i) {
    for (int64_t j = 0; j < shape_.n; ++j) {
      std::byte* element = rest.data() + kGuardBytes + view.IndexOf(i, j) * size;
      std::memcpy(&bits[i * shape_.n + j], element, size);
      std::memset(element, 0xff, size);
    }
  }
  EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [](std::byte b) {
    return b == std::byte{0xff};
  })) << "something was written outside D";
  return bits;
}

void Product::ExpectRight() const {
  const MatrixView a = options_.a_transposed ? a_.transposed_view() : a_.view();
  const MatrixView b = options_.b_transposed ? b_.transposed_view() : b_.view();
  const absl::StatusOr<Reference> reference = ComputeReference(a, b);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const absl::StatusOr<Comparison> comparison = CompareWithReference(d(), *reference, epilogue_);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_TRUE(comparison->ok) << comparison->ToString();
}

Device& TestCpuDevice(int width) {
  static auto& devices = *new std::map<int, std::unique_ptr<Device>>();
  std::unique_ptr<Device>& device = devices[width];
  if (device == nullptr) {
    const char* name = std::getenv("TCGEMM_TEST_BACKEND");
    const std::string backend = name == nullptr ? "" : name;
    absl::StatusOr<std::unique_ptr<Device>> made =
        CreateCpuDevice(backend == "plain"    ? CpuBackend::kPlain
                        : backend == "onednn" ? CpuBackend::kOnednn
                                              : CpuBackend::kAuto,
                        std::make_unique<PoolRunner>(width));
    if (!made.ok()) {
      ADD_FAILURE() << made.status();
      std::abort();
    }
    device = *std::move(made);
  }
  return *device;
}

void Multiply(Device& device, const std::vector<Product*>& products) {
  std::vector<GemmProblem> problems;
  for (Product* product : products) {
    problems.push_back(product->Prepare());
    ASSERT_TRUE(ValidateProblem(problems.back()).ok()) << ValidateProblem(problems.back());
  }
  const absl::StatusOr<Plan> plan = ChoosePlan(device.plan_limits(), problems);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::unique_ptr<Stream> stream = *device.CreateStream();
  const absl::Status status = device.Launch(*stream, *plan, problems);
  ASSERT_TRUE(status.ok()) << status;
}

std::vector<uint32_t> MultiplyAlone(Product& product, int width) {
  Multiply(TestCpuDevice(width), {&product});
  return product.TakeBits();
}

}  // namespace tcgemm
