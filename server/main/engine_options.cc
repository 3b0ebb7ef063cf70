#include "server/main/engine_options.h"

#include <algorithm>

namespace tcgemm {
namespace {

// What a slot of a GPU has by default: room for every product that fits the pinned pool (plus the
// flags), up to this much.
constexpr uint64_t kLargestDefaultSlab = uint64_t{2} << 30;
constexpr uint64_t kSlabFlags = uint64_t{1} << 20;

uint64_t DefaultDeviceBytes(const EngineOptions& engine) {
  return static_cast<uint64_t>(engine.slots) *
         std::min<uint64_t>(kLargestDefaultSlab, engine.pinned_bytes + kSlabFlags);
}

}  // namespace

EngineOptions EngineOptionsOf(const ServerOptions& options) {
  EngineOptions engine;
  engine.max_batch = options.max_batch;
  engine.max_queue_delay = std::chrono::microseconds(options.max_queue_delay_us);
  engine.pinned_bytes = options.pinned_bytes;
  engine.device_bytes =
      options.device_bytes != 0 ? options.device_bytes : DefaultDeviceBytes(engine);
  engine.resident_bytes = options.resident_bytes;
  engine.shared = {.total_bytes = SharedMemoryBytes(options),
                   .caller_bytes = options.shared_memory_caller_bytes};
  engine.direct_submit = true;
  engine.in_place_bytes = static_cast<size_t>(options.small_batch_bytes);
  engine.resident_bytes_per_caller = options.resident_bytes_per_caller;
  engine.watchdog_min = options.watchdog_min;
  return engine;
}

}  // namespace tcgemm
