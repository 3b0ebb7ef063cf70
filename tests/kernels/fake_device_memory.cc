// The fake device's memory, and the checks that a GPU makes by faulting.
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/kernels/fake_device.h"

namespace tcgemm {

absl::StatusOr<MemoryBlock> FakeDevice::Allocate(size_t bytes, MemoryKind kind) {
  if (bytes == 0) return MemoryBlock();
  MutexLock lock(&mutex_);
  const size_t left = options_.memory_bytes - allocated_bytes_[0] - allocated_bytes_[1];
  if (bytes > left) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes: ", left, " are left"));
  }
  void* data = ::operator new (bytes, std::align_val_t{4096}, std::nothrow);
  if (data == nullptr) return absl::ResourceExhaustedError("out of memory");
  // 0xff is NaN in every type: reading what nobody wrote shows.
  std::memset(data, 0xff, bytes);
  allocations_[reinterpret_cast<uintptr_t>(data)] = {bytes, kind};
  allocated_bytes_[static_cast<int>(kind)] += bytes;
  return MemoryBlock(data, bytes, [this, bytes, kind](void* p) {
    MutexLock lock(&mutex_);
    allocations_.erase(reinterpret_cast<uintptr_t>(p));
    allocated_bytes_[static_cast<int>(kind)] -= bytes;
    ::operator delete (p, std::align_val_t{4096});
  });
}

absl::StatusOr<MemoryBlock> FakeDevice::AllocatePinned(size_t bytes) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kAllocatePinned));
  return Allocate(bytes, MemoryKind::kPinned);
}

absl::StatusOr<MemoryBlock> FakeDevice::AllocateDevice(size_t bytes) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kAllocateDevice));
  return Allocate(bytes, MemoryKind::kDevice);
}

absl::Status FakeDevice::RegisterHost(void* data, size_t bytes) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kRegisterHost));
  MutexLock lock(&mutex_);
  const Allocation allocation = {bytes, MemoryKind::kRegistered};
  if (!allocations_.emplace(reinterpret_cast<uintptr_t>(data), allocation).second) {
    return absl::InternalError("this memory is registered already");
  }
  allocated_bytes_[static_cast<int>(MemoryKind::kRegistered)] += bytes;
  return absl::OkStatus();
}

absl::Status FakeDevice::UnregisterHost(void* data) {
  MutexLock lock(&mutex_);
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(data));
  if (found == allocations_.end() || found->second.kind != MemoryKind::kRegistered) {
    return absl::InternalError("this memory is not registered");
  }
  allocated_bytes_[static_cast<int>(MemoryKind::kRegistered)] -= found->second.bytes;
  allocations_.erase(found);
  return absl::OkStatus();
}

absl::Status FakeDevice::CheckDeviceMemory(const void* data, size_t bytes, const char* what) const {
  if (bytes == 0) return absl::OkStatus();
  MutexLock lock(&mutex_);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  auto found = allocations_.upper_bound(begin);
  if (found == allocations_.begin()) {
    return absl::InternalError(absl::StrCat(what, " is not device memory"));
  }
  --found;
  const auto& [start, allocation] = *found;
  if (begin - start >= allocation.bytes ||
      (allocation.kind != MemoryKind::kDevice && !options_.unified_memory)) {
    return absl::InternalError(absl::StrCat(what, " is not device memory"));
  }
  if (bytes > allocation.bytes - (begin - start)) {
    return absl::InternalError(absl::StrCat(what, " ends past its allocation: ", bytes,
                                            " bytes, but ", allocation.bytes - (begin - start),
                                            " are there"));
  }
  return absl::OkStatus();
}

absl::Status FakeDevice::CheckProblem(const GemmProblem& problem) const {
  TCGEMM_RETURN_IF_ERROR(ValidateProblem(problem));
  for (const MatrixView& view : {problem.a, problem.b}) {
    if (view.ld % options_.pitch_alignment != 0) {
      return absl::InternalError(
          absl::StrCat("ld ", view.ld, " is not a multiple of ", options_.pitch_alignment));
    }
    TCGEMM_RETURN_IF_ERROR(CheckDeviceMemory(view.data, view.span_bytes(), "an operand"));
  }
  const Epilogue& epilogue = problem.epilogue;
  if (epilogue.reads_c()) {
    TCGEMM_RETURN_IF_ERROR(CheckDeviceMemory(epilogue.c.data, epilogue.c.span_bytes(), "C"));
  }
  if (epilogue.has_bias()) {
    TCGEMM_RETURN_IF_ERROR(
        CheckDeviceMemory(epilogue.bias.data, epilogue.bias.span_bytes(), "the bias"));
  }
  TCGEMM_RETURN_IF_ERROR(CheckDeviceMemory(problem.d.data, problem.d.span_bytes(), "D"));
  if (problem.nonfinite == nullptr) return absl::OkStatus();
  return CheckDeviceMemory(problem.nonfinite, sizeof(uint32_t), "the nonfinite flag");
}

}  // namespace tcgemm
