// For LD_PRELOAD: counts what memcpy, memmove and mempcpy copy, 4 KiB and more a call, by caller.
//
// Into the file that TCGEMM_COPY_COUNTER names, a table that others may read meanwhile: of each
// return address the address, its calls and their bytes, three native uint64 (copies_test.py). Not
// seen: the kernel's copies (recv, send), copies inside libc, and those that a compiler writes out.
// x86-64: the copies themselves are one instruction, for nothing of libc may be called here.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr size_t kLeastBytes = 4096;
constexpr size_t kSites = 4096;

struct Site {
  std::atomic<uint64_t> caller;
  std::atomic<uint64_t> calls;
  std::atomic<uint64_t> bytes;
};

std::atomic<Site*> sites{nullptr};

__attribute__((constructor)) void Open() {
  const char* const path = std::getenv("TCGEMM_COPY_COUNTER");
  if (path == nullptr) return;
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Site) * kSites) != 0) std::abort();
  void* const table =
      mmap(nullptr, sizeof(Site) * kSites, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (table == MAP_FAILED) std::abort();
  close(fd);
  sites.store(static_cast<Site*>(table));
}

void Count(void* caller, size_t bytes) {
  Site* const table = sites.load(std::memory_order_relaxed);
  if (table == nullptr || bytes < kLeastBytes) return;
  const auto address = reinterpret_cast<uint64_t>(caller);
  for (size_t i = 0; i < kSites; ++i) {
    Site& site = table[(address + i) % kSites];
    uint64_t found = 0;
    if (site.caller.compare_exchange_strong(found, address) || found == address) {
      site.calls.fetch_add(1, std::memory_order_relaxed);
      site.bytes.fetch_add(bytes, std::memory_order_relaxed);
      return;
    }
  }
  std::abort();  // a count that is not complete would be a lie
}

void* Forwards(void* to, const void* from, size_t bytes) {
  void* at = to;
  asm volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(bytes) : : "memory");
  return at;
}

void Backwards(void* to, const void* from, size_t bytes) {
  void* last = static_cast<char*>(to) + bytes - 1;
  const void* source = static_cast<const char*>(from) + bytes - 1;
  asm volatile("std\n\trep movsb\n\tcld" : "+D"(last), "+S"(source), "+c"(bytes) : : "memory");
}

void* Move(void* to, const void* from, size_t bytes) {
  const size_t ahead = static_cast<size_t>(static_cast<char*>(to) - static_cast<const char*>(from));
  if (ahead >= bytes) {  // also when `to` lies before `from`: the difference wraps
    Forwards(to, from, bytes);
  } else {
    Backwards(to, from, bytes);
  }
  return to;
}

void CheckRoom(size_t bytes, size_t room) {
  if (bytes > room) std::abort();
}

}  // namespace

extern "C" {

void* memcpy(void* to, const void* from, size_t bytes) noexcept {
  Count(__builtin_return_address(0), bytes);
  Forwards(to, from, bytes);
  return to;
}
void* memmove(void* to, const void* from, size_t bytes) noexcept {
  Count(__builtin_return_address(0), bytes);
  return Move(to, from, bytes);
}
void* mempcpy(void* to, const void* from, size_t bytes) noexcept {
  Count(__builtin_return_address(0), bytes);
  return Forwards(to, from, bytes);
}

// What _FORTIFY_SOURCE makes of them.
void* __memcpy_chk(void* to, const void* from, size_t bytes, size_t room) noexcept {
  Count(__builtin_return_address(0), bytes);
  CheckRoom(bytes, room);
  Forwards(to, from, bytes);
  return to;
}
void* __memmove_chk(void* to, const void* from, size_t bytes, size_t room) noexcept {
  Count(__builtin_return_address(0), bytes);
  CheckRoom(bytes, room);
  return Move(to, from, bytes);
}
void* __mempcpy_chk(void* to, const void* from, size_t bytes, size_t room) noexcept {
  Count(__builtin_return_address(0), bytes);
  CheckRoom(bytes, room);
  return Forwards(to, from, bytes);
}

}  // extern "C"
