// One product for tests: random operands with NaN in the gaps of any ld, a D between guard bytes.
#ifndef TCGEMM_TESTS_KERNELS_PRODUCT_H_
#define TCGEMM_TESTS_KERNELS_PRODUCT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_cpu.h"
#include "matrix/matrix.h"

namespace tcgemm {

struct ProductOptions {
  bool a_transposed = false;
  bool b_transposed = false;
  int64_t gap = 0;  // ld − cols, of A, B and D
  DType output = DType::kFp32;
  uint64_t seed = 1;
};

class Product {
 public:
  Product(const GemmShape& shape, const ProductOptions& options);
  // The operands of `other`, bit by bit, stored as `options` says (its seed is not used).
  Product(const Product& other, const ProductOptions& options);

  void SetA(int64_t i, int64_t k, uint16_t bits);  // of op(A)
  void SetB(int64_t k, int64_t j, uint16_t bits);  // of op(B)
  uint16_t GetA(int64_t i, int64_t k) const;
  uint16_t GetB(int64_t k, int64_t j) const;
  // Of what Prepare describes; its operands must outlive the product.
  void SetEpilogue(const Epilogue& epilogue) { epilogue_ = epilogue; }

  // Writes 0xff to all of D's memory and clears the flag, then describes the product.
  GemmProblem Prepare();
  // The bits of D, row by row; bf16 ones are not moved up. Expects intact guards and gaps.
  std::vector<uint32_t> TakeBits() const;
  MatrixView d() const;
  uint32_t nonfinite() const { return nonfinite_; }
  GemmShape shape() const { return shape_; }

  // Expects D within the error bound of matrix/reference.h.
  void ExpectRight() const;

 private:
  GemmShape shape_;
  ProductOptions options_;
  Matrix a_;
  Matrix b_;
  Epilogue epilogue_;
  std::vector<std::byte> d_memory_;
  uint32_t nonfinite_ = 0;
};

// The device under test: of TCGEMM_TEST_BACKEND ("plain", "onednn"; default: kAuto), with `width`
// threads. Made once per width, never freed. oneDNN reads ONEDNN_MAX_CPU_ISA by itself.
Device& TestCpuDevice(int width = 2);

// One launch of all; expects success.
void Multiply(Device& device, const std::vector<Product*>& products);
// The same of one, and its bits.
std::vector<uint32_t> MultiplyAlone(Product& product, int width = 2);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_KERNELS_PRODUCT_H_
