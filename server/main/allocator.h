// malloc for large messages: what is freed after a call is kept for the next one.
#ifndef TCGEMM_SERVER_MAIN_ALLOCATOR_H_
#define TCGEMM_SERVER_MAIN_ALLOCATOR_H_

namespace tcgemm {

// gRPC receives a 64 MiB message into about a thousand slices and frees them after the call; glibc
// by default returns the memory to the kernel, and the next call faults every page in again. Call
// first in main, before any thread. Does nothing for other allocators than glibc's, or when
// TCGEMM_MALLOC=default is set (for measurements). docs/adr/0009 has the numbers.
void TuneAllocator();

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_ALLOCATOR_H_
