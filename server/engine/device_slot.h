// What one batch in flight needs. Private to the device worker's sources.
#ifndef TCGEMM_SERVER_ENGINE_DEVICE_SLOT_H_
#define TCGEMM_SERVER_ENGINE_DEVICE_SLOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "kernels/device.h"
#include "server/engine/device_worker.h"
#include "server/engine/job_queue.h"
#include "server/engine/row_bands.h"
#include "server/engine/stacking.h"

namespace tcgemm {

struct DeviceWorker::Slot {
  // The order matters: events and streams go before memory.
  MemoryBlock slab;        // flags, then matrices; empty with unified memory
  MemoryBlock host_flags;  // one per job: its result holds a NaN or an Inf
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Stream> out_stream;  // takes bands of D to the host
  std::unique_ptr<Event> started;
  std::unique_ptr<Event> copied_in;
  std::unique_ptr<Event> computed;
  std::unique_ptr<Event> finished;
  struct BandEvents {
    std::unique_ptr<Event> launched;
    std::unique_ptr<Event> computed;
  };
  BandEvents band_events[kMostBands];

  // One batch.
  std::vector<QueuedJob> jobs;
  PlacedBatch batch;           // with the device's pointers
  bool in_place = false;       // the pointers are the jobs' own: nothing is copied
  bool flags_in_slab = false;  // and copied; else the device writes host_flags
  bool copies_out = false;     // else `finished` is the kernel's end
  std::vector<RowBand> bands;  // of a large product that is alone; none: it is in one piece
  TimePoint taken_at;
  Plan plan;  // of bands: the first one's
  double flops = 0;
  size_t bytes_in = 0;
  size_t bytes_out = 0;
  absl::Status status;
  bool recorded = false;  // `finished` marks the end of all that the device was asked for
  Nanos predicted{0};

  // Of a batch that hung: the device may still write there.
  struct Kept {
    Lease memory;
    JobResidents residents;
    JobRegions regions;
  };
  std::vector<Kept> kept;

  uint32_t* flags() const { return reinterpret_cast<uint32_t*>(host_flags.data()); }
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_DEVICE_SLOT_H_
