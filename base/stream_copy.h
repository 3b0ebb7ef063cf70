// memcpy for bytes that this core will not read again soon.
//
// An ordinary store first reads the line it overwrites and then evicts somebody else's: a large
// copy moves three bytes for two and leaves the caches cold. Non-temporal stores write whole lines
// past the caches (Intel 64 optimization manual, "Non-temporal stores"; AMD64 APM vol. 1, 3.9.11).
#ifndef TCGEMM_BASE_STREAM_COPY_H_
#define TCGEMM_BASE_STREAM_COPY_H_

#include <cstddef>

namespace tcgemm {

// Copies `bytes` from `from` to `to`, which must not overlap. Any alignment. Worth it for pieces of
// some KiB and more that go to memory, not to the next instruction. As visible to other threads
// afterwards as memcpy's bytes are (it fences). Thread-safe; plain memcpy off x86-64.
void StreamCopy(void* to, const void* from, size_t bytes);

}  // namespace tcgemm

#endif  // TCGEMM_BASE_STREAM_COPY_H_
