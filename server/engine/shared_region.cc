#include "server/engine/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Linux 6.3 (memfd_create(2)); older headers do not name it.
constexpr unsigned kNoExecSeal = 0x0008;

absl::Status SystemError(const std::string& what, int error) {
  const std::string message = absl::StrCat("shared memory: ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

int CreateMemfd() {
  constexpr char kName[] = "tcgemm-region";
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create(kName, kFlags | kNoExecSeal);
  return fd >= 0 || errno != EINVAL ? fd : memfd_create(kName, kFlags);  // an older kernel
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Create(Identity identity, size_t bytes,
                                                                   Device* device) {
  const size_t rounded = RoundUpToPages(bytes);
  if (bytes == 0 || rounded == 0 ||
      rounded > static_cast<size_t>(std::numeric_limits<off_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("a region cannot have ", bytes, " bytes"));
  }
  const int fd = CreateMemfd();
  if (fd < 0) return SystemError("memfd_create", errno);
  std::unique_ptr<SharedRegion> region(new SharedRegion(std::move(identity), fd, rounded, device));
  TCGEMM_RETURN_IF_ERROR(region->Seal());
  TCGEMM_RETURN_IF_ERROR(region->Map());
  TCGEMM_RETURN_IF_ERROR(device->RegisterHost(region->data_, region->bytes_));
  region->registered_ = true;
  return region;
}

SharedRegion::~SharedRegion() {
  // Fails when the device is lost. The pages that its driver still pins stay its own then.
  if (registered_) (void)device_->UnregisterHost(data_);
  if (data_ != nullptr) munmap(data_, bytes_);
  // The other process may keep its mapping, and with it every page, which count as the server's.
  (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_));
  close(fd_);
}

absl::Status SharedRegion::Seal() {
  if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) return SystemError("ftruncate", errno);
  if (fcntl(fd_, F_ADD_SEALS, kSeals) != 0) return SystemError("F_ADD_SEALS", errno);
  const int seals = fcntl(fd_, F_GET_SEALS);
  if (seals >= 0 && (seals & kSeals) == kSeals) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("shared memory: the seals are ", seals));
}

absl::Status SharedRegion::Map() {
  // Before anyone maps it: a page that is not to be had is an error here, not a signal later.
  int error;
  do {
    error = fallocate(fd_, 0, 0, static_cast<off_t>(bytes_)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) return SystemError(absl::StrCat("allocating ", bytes_, " bytes"), error);
  void* const data =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, 0);
  if (data == MAP_FAILED) return SystemError("mmap", errno);
  data_ = static_cast<std::byte*>(data);
  return absl::OkStatus();
}

size_t SharedRegion::RoundUpToPages(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > std::numeric_limits<size_t>::max() - (page - 1)) return 0;
  return (bytes + page - 1) / page * page;
}

absl::Status CheckSharedMemoryAllowed(const FileReader& read_file) {
  const auto mode = read_file("/proc/sys/vm/overcommit_memory");
  if (!mode.has_value() || absl::StripSuffix(*mode, "\n") != "2") return absl::OkStatus();
  return absl::FailedPreconditionError(
      "--allow-shared-memory: vm.overcommit_memory is 2 (strict): a client could then make a page "
      "of its region unavailable, which would end the server; set it to 0 or 1");
}

}  // namespace tcgemm
