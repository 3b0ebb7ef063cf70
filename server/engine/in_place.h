// Which batches are not copied to the device, though it has memory of its own: policy alone.
//
// A copy of some KiB takes a GPU longer than its bytes need on the bus, and the driver some µs to
// ask for. A small batch is faster when the kernel reads its operands, and writes its results,
// where they lie in pinned host memory. A large one is not: its tiles read operands several times,
// and so does a small A beside a wide B. (A small D of a copied batch, written where it belongs,
// was tried on 16x4096x4096: the kernel takes 38 µs instead of 17, and a copy of D 11.)
#ifndef TCGEMM_SERVER_ENGINE_IN_PLACE_H_
#define TCGEMM_SERVER_ENGINE_IN_PLACE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "server/engine/stacking.h"

namespace tcgemm {

// Measured on an H200, one client over a unix socket, p50 with copies and in place: 64³ 184 and
// 156 µs, 128³ 242 and 209, 256³ (384 KiB) 363 and 329; 8 clients of 128³: 15,000 and 20,300
// requests a second. Beyond that tiles read operands several times over the bus, which takes
// longer than a copy.
inline constexpr size_t kDefaultInPlaceBytes = size_t{512} << 10;

struct InPlaceRule {
  bool reads_pinned = false;    // DeviceInfo's
  int64_t pitch_alignment = 1;  // DeviceInfo's
  size_t max_bytes = 0;         // of a batch: what its copies would take in the slab
};

// True for a batch of at most max_bytes, of which the kernel reads no more than twice as many over
// the bus, tile by tile, whose results every kernel could write where they lie, and
// read C there, and of which no jobs are one product (stacking: B is read once then, and rows must
// lie together). False where something lies in shared memory: its rows may lie as no kernel reads
// them.
bool StaysInPlace(absl::Span<const StackCandidate> jobs, const InPlaceRule& rule);

// What crosses the bus at least once.
struct BusBytes {
  size_t in = 0;
  size_t out = 0;
};
BusBytes InPlaceBytes(absl::Span<const StackCandidate> jobs);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_IN_PLACE_H_
