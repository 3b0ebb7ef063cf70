// The image of a launch's memory, built on the host: every byte that is no operand is 0xff (a NaN
// in either type), so that whoever reads it is found out; compared byte by byte afterwards.
#ifndef TCGEMM_TESTS_GPU_GPU_ARENA_H_
#define TCGEMM_TESTS_GPU_GPU_ARENA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"
#include "tests/gpu/gpu_launch.h"

namespace tcgemm {

class Arena {
 public:
  // `before` and `after` are host memory, `device` as large; `pitch` in elements.
  Arena(const MemoryBlock& before, const MemoryBlock& after, std::byte* device, int64_t pitch)
      : before_(before.data()),
        after_(after.data()),
        device_(device),
        capacity_(before.bytes()),
        pitch_(pitch) {}

  // Lays operands, C and bias (as far as the epilogue reads them), D and flag out, writes their
  // image; the problem points into device memory.
  GemmProblem Add(const Operands& operands, const Storage& storage, const Epilogue& epilogue);
  // Of the image so far, a guard included.
  size_t bytes() const { return used_; }

  // After the launch. Reads D out of the copy and puts the poison back in its place.
  GpuResult Take(const GemmProblem& problem);
  // After every Take: operands, gaps and guards are as they were.
  void ExpectRestUntouched() const;
  // For a launch that failed: results without a single number.
  void SpoilResults();

 private:
  // Returns the offset of `bytes`, poisoned, with a guard before and behind.
  size_t Reserve(size_t bytes);
  size_t AddOperand(const Matrix& dense, bool transposed, const Storage& storage, MatrixView& view);
  // Moves a view of C or a bias into device memory, rows `ld` apart.
  void AddAddend(MatrixView& view, int64_t ld);
  std::byte* After(const void* device_pointer) const;

  std::byte* const before_;
  std::byte* const after_;
  std::byte* const device_;
  const size_t capacity_;
  const int64_t pitch_;
  size_t used_ = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_GPU_GPU_ARENA_H_
