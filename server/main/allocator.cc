#include "server/main/allocator.h"

#include <malloc.h>

#include <cstdlib>
#include <string_view>

namespace tcgemm {
namespace {

// Above what a receive budget's worth of slices leaves free at a time.
constexpr int kKeepBytes = 1 << 30;
// Few arenas: gRPC frees on other threads than it allocates on, and every arena keeps its own.
constexpr int kArenas = 2;
constexpr int kGrowBytes = 16 << 20;

}  // namespace

void TuneAllocator() {
#ifdef __GLIBC__
  const char* const choice = std::getenv("TCGEMM_MALLOC");
  if (choice != nullptr && std::string_view(choice) == "default") return;
  mallopt(M_TRIM_THRESHOLD, kKeepBytes);
  // No mapping of its own for large blocks: each would be faulted in anew.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TOP_PAD, kGrowBytes);
  mallopt(M_ARENA_MAX, kArenas);
#endif
}

}  // namespace tcgemm
