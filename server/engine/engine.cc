#include "server/engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/engine/device_worker.h"
#include "server/engine/direct_submit.h"
#include "server/engine/job_queue.h"
#include "server/engine/memory_limit.h"
#include "server/engine/self_test.h"
#include "server/engine/slab.h"

namespace tcgemm {
namespace {

// The work that may share a launch. A launch costs some 10 µs, so companions are worth having only
// for products well below this; and no product is delayed by its companions for longer than it.
constexpr double kBatchSeconds = 500e-6;
// But always max_batch products of 64³: on a slow device too, requests of that size are "small".
constexpr double kSmallProductFlops = 2.0 * 64 * 64 * 64;

// Copies to and from resident matrices at once: enough that one is under way while the next one's
// bytes are put together.
constexpr int kTransferLanes = 4;

double MaxBatchFlops(const EngineOptions& options, const DeviceInfo& info) {
  return std::max(kBatchSeconds * info.flops_per_second, options.max_batch * kSmallProductFlops);
}

absl::Status CheckRange(std::string_view name, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();  // a NaN is in no range
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(name), " is ", value, ", must be from ", low, " to ", high));
}

size_t SlabSize(const EngineOptions& options) {
  const size_t share = options.device_bytes / static_cast<size_t>(options.slots);
  return share / BufferPool::kAlignment * BufferPool::kAlignment;
}

// Of the device; the rest of max_batch's range is CheckOptions's.
absl::Status CheckMaxBatch(const EngineOptions& options, const Device& device) {
  const int limit = device.plan_limits().max_problems;
  if (options.max_batch <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--max-batch is ", options.max_batch, ", but ",
                                                 device.info().name, " takes at most ", limit,
                                                 " products in one launch"));
}

absl::Status CheckDelay(Nanos delay) {
  return CheckRange("max_queue_delay in ns", static_cast<double>(delay.count()), 0, 60e9);
}

absl::Status CheckOptions(const EngineOptions& options, const DeviceInfo& info) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  TCGEMM_RETURN_IF_ERROR(CheckRange("max_batch", options.max_batch, 1, 1024));
  TCGEMM_RETURN_IF_ERROR(CheckRange("slots", options.slots, 1, 16));
  TCGEMM_RETURN_IF_ERROR(CheckDelay(options.max_queue_delay));
  TCGEMM_RETURN_IF_ERROR(CheckRange("pinned_bytes", static_cast<double>(options.pinned_bytes),
                                    BufferPool::kAlignment, kInfinity));
  TCGEMM_RETURN_IF_ERROR(
      CheckRange("max_queue_jobs", static_cast<double>(options.max_queue_jobs), 1, 1e9));
  TCGEMM_RETURN_IF_ERROR(CheckRange("max_queue_seconds", options.max_queue_seconds,
                                    std::numeric_limits<double>::min(), kInfinity));
  TCGEMM_RETURN_IF_ERROR(CheckRange("watchdog_min in ns",
                                    static_cast<double>(options.watchdog_min.count()), 1, 86400e9));
  TCGEMM_RETURN_IF_ERROR(CheckRange("the device's flops_per_second", info.flops_per_second,
                                    std::numeric_limits<double>::min(), kInfinity));
  if (!info.unified_memory && SlabCapacity(SlabSize(options), options.max_batch) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("device_bytes is ", options.device_bytes,
                                                   ": too little for ", options.slots, " slots of ",
                                                   options.max_batch, " jobs"));
  }
  return absl::OkStatus();
}

// What a hung device may still use. Releasing it would wait for the device, so it stays, reachable
// (leak checkers look for what is not), until the process ends.
struct Abandoned {
  std::unique_ptr<Device> device;
  std::unique_ptr<BufferPool> pool;
  std::unique_ptr<ResidentStore> residents;
  std::unique_ptr<ResidentTransfers> transfers;
  std::unique_ptr<SharedRegionStore> regions;
  std::unique_ptr<DeviceWorker> worker;
};

void KeepForever(Abandoned abandoned) {
  static Mutex mutex;
  static auto* const kept = new std::vector<Abandoned>();
  MutexLock lock(&mutex);
  kept->push_back(std::move(abandoned));
}

class EngineImpl final : public Engine {
 public:
  struct Memory {
    MemoryBlock pinned;
    MemoryBlock resident;
  };
  EngineImpl(const EngineOptions& options, std::unique_ptr<Device> device, Memory memory,
             const Clock* clock, EngineEvents* events);
  ~EngineImpl() override;
  absl::Status Start(const Clock* clock);

  absl::Status SelfTest() override;
  absl::Status Admit(const Caller& caller) override;
  absl::StatusOr<JobId> Submit(Job job) override;
  bool Cancel(JobId id, absl::Status why) override { return queue_.Cancel(id, std::move(why)); }
  absl::Status SetBatching(const EngineBatching& batching) override;
  EngineBatching batching() const override;
  void Drain() override { queue_.Drain(); }
  int64_t pending_jobs() const override { return queue_.pending_jobs(); }
  BufferPool& host_pool() override { return *pool_; }
  ResidentStore& residents() override { return *residents_; }
  ResidentTransfers& transfers() override { return *transfers_; }
  SharedRegionStore& regions() override { return *regions_; }
  const DeviceInfo& device_info() const override { return device_->info(); }
  const std::vector<KernelId>& kernels() const override { return device_->plan_limits().kernels; }
  const EngineOptions& options() const override { return options_; }
  size_t slab_capacity() const override { return slab_capacity_; }
  bool healthy() const override { return healthy_.load(); }

 private:
  void OnUnhealthy(const FatalError& error);
  // The job's id, if the device was idle and has it now; else `job` is as it was.
  std::optional<JobId> RunAtOnce(Job& job, size_t bytes);

  const EngineOptions options_;
  std::unique_ptr<Device> device_;  // outlives all that is made of it
  EngineEvents* const events_;
  const size_t slab_capacity_;  // what one batch may take
  std::atomic<bool> healthy_{true};
  std::atomic<bool> testing_{false};
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<ResidentStore> residents_;
  std::unique_ptr<ResidentTransfers> transfers_;
  std::unique_ptr<SharedRegionStore> regions_;
  JobQueue queue_;
  std::unique_ptr<DeviceWorker> worker_;
  std::thread deadline_thread_;
};

EngineImpl::EngineImpl(const EngineOptions& options, std::unique_ptr<Device> device, Memory memory,
                       const Clock* clock, EngineEvents* events)
    : options_(options),
      device_(std::move(device)),
      events_(events),
      slab_capacity_(device_->info().unified_memory
                         ? std::numeric_limits<size_t>::max()
                         : SlabCapacity(SlabSize(options), options.max_batch)),
      pool_(std::make_unique<BufferPool>("pinned", std::move(memory.pinned))),
      residents_(std::make_unique<ResidentStore>(
          std::move(memory.resident), device_->info().pitch_alignment, clock,
          ResidentStore::SystemRandom(), options.resident_bytes_per_caller)),
      regions_(std::make_unique<SharedRegionStore>(options.shared, device_.get())),
      queue_({.max_batch = options.max_batch,
              .max_delay = options.max_queue_delay,
              .max_batch_flops = MaxBatchFlops(options, device_->info()),
              .max_batch_bytes = slab_capacity_},
             {.jobs = options.max_queue_jobs,
              .bytes = options.queue_bytes == 0 ? options.pinned_bytes : options.queue_bytes,
              .flops = options.max_queue_seconds * device_->info().flops_per_second},
             clock, events) {}

EngineImpl::~EngineImpl() {
  queue_.Close(absl::UnavailableError("the server is stopping"));
  if (worker_ != nullptr) worker_->Stop();
  if (deadline_thread_.joinable()) deadline_thread_.join();
  const bool copies_hang = transfers_ != nullptr && transfers_->hung();
  if (copies_hang || (worker_ != nullptr && worker_->hung())) {
    KeepForever({std::move(device_), std::move(pool_), std::move(residents_), std::move(transfers_),
                 std::move(regions_), std::move(worker_)});
  }
  worker_.reset();
}

absl::Status EngineImpl::Start(const Clock* clock) {
  TCGEMM_ASSIGN_OR_RETURN(transfers_,
                          ResidentTransfers::Create(device_.get(), events_, kTransferLanes));
  TCGEMM_ASSIGN_OR_RETURN(
      worker_, DeviceWorker::Create({.slots = options_.slots,
                                     .max_batch = options_.max_batch,
                                     .slab_bytes = SlabSize(options_),
                                     .in_place_bytes = options_.in_place_bytes,
                                     .watchdog_min = options_.watchdog_min},
                                    device_.get(), &queue_, clock, events_,
                                    [this](const FatalError& error) { OnUnhealthy(error); }));
  deadline_thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "engine-deadline");
    queue_.ExpireUntilClosed();
  });
  events_->OnDeviceHealth(true);
  return absl::OkStatus();
}

absl::Status EngineImpl::SelfTest() {
  testing_.store(true);  // it wants batches
  absl::Status status = RunSelfTest(*this);
  testing_.store(false);
  if (!status.ok()) events_->OnDeviceError(DeviceErrorKind::kSelfTest);
  return status;
}

absl::Status EngineImpl::Admit(const Caller& /*caller*/) { return queue_.Admit(); }

absl::StatusOr<JobId> EngineImpl::Submit(Job job) {
  TCGEMM_RETURN_IF_ERROR(ValidateProblem(job.problem));
  const size_t bytes =
      SlabBytes(job.problem, device_->info().pitch_alignment, job.residents.on_device());
  if (bytes > slab_capacity_) {
    return absl::InvalidArgumentError(absl::StrCat(
        job.problem.shape().ToString(), " needs ", bytes, " bytes of device memory at once, limit ",
        slab_capacity_, " (--device-bytes shared out over ", options_.slots, " slots)"));
  }
  if (const std::optional<JobId> id = RunAtOnce(job, bytes)) return *id;
  return queue_.Push(std::move(job), bytes);
}

std::optional<JobId> EngineImpl::RunAtOnce(Job& job, size_t bytes) {
  if (!options_.direct_submit || testing_.load()) return std::nullopt;
  const DeviceInfo& info = device_->info();
  const Nanos spin = DirectSpin({.flops = job.problem.shape().flops(),
                                 .flops_per_second = info.flops_per_second,
                                 .bytes = bytes});
  // With unified memory it is the CPU.
  if (!MaySubmitDirectly(spin, info.unified_memory)) return std::nullopt;
  std::optional<JobId> id;
  worker_->RunAtOnce(spin, [&] {
    std::optional<QueuedJob> taken = queue_.TakeAtOnce(job);
    if (taken.has_value()) id = taken->id;
    return taken;
  });
  return id;
}

absl::Status EngineImpl::SetBatching(const EngineBatching& batching) {
  TCGEMM_RETURN_IF_ERROR(CheckRange("max_batch", batching.max_batch, 1, options_.max_batch));
  TCGEMM_RETURN_IF_ERROR(CheckDelay(batching.max_queue_delay));
  queue_.SetBatching(batching.max_batch, batching.max_queue_delay);
  return absl::OkStatus();
}

EngineBatching EngineImpl::batching() const {
  const BatcherOptions now = queue_.batching();
  return {.max_batch = now.max_batch, .max_queue_delay = now.max_delay};
}

void EngineImpl::OnUnhealthy(const FatalError& error) {
  healthy_.store(false);
  events_->OnDeviceHealth(false);
  queue_.Close(absl::UnavailableError(absl::StrCat(
      "device ", device_->info().name,
      error.cause == FatalCause::kWatchdog ? " hangs: " : " is lost: ", error.status.message())));
  if (options_.on_fatal != nullptr) options_.on_fatal(error);
}

absl::StatusOr<MemoryBlock> AllocateResident(Device& device, size_t bytes) {
  if (bytes == 0) return MemoryBlock();
  absl::StatusOr<MemoryBlock> block =
      device.info().unified_memory ? device.AllocateForLater(bytes) : device.AllocateDevice(bytes);
  if (block.ok()) return block;
  // It has a default: who never set it must learn that there is such a flag.
  return absl::Status(block.status().code(), absl::StrCat("--resident-bytes ", bytes, ": ",
                                                          std::string(block.status().message())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<Device> device,
                                                       const Clock* clock, EngineEvents* events) {
  TCGEMM_RETURN_IF_ERROR(CheckOptions(options, device->info()));
  TCGEMM_RETURN_IF_ERROR(CheckMaxBatch(options, *device));
  TCGEMM_ASSIGN_OR_RETURN(const MemoryLimit limit, DetectMemoryLimit(RealFileReader()));
  const bool unified = device->info().unified_memory;
  // Device memory is the device's, not the container's; with unified memory there are no slabs.
  TCGEMM_RETURN_IF_ERROR(CheckMemoryBudgets(
      {{.name = "--pinned-bytes", .bytes = options.pinned_bytes},
       {.name = "--resident-bytes", .bytes = unified ? options.resident_bytes : 0},
       {.name = "--shared-memory-bytes", .bytes = options.shared.total_bytes}},
      limit));
  EngineImpl::Memory memory;
  TCGEMM_ASSIGN_OR_RETURN(memory.pinned, device->AllocatePinned(options.pinned_bytes));
  TCGEMM_ASSIGN_OR_RETURN(memory.resident, AllocateResident(*device, options.resident_bytes));
  auto engine =
      std::make_unique<EngineImpl>(options, std::move(device), std::move(memory), clock, events);
  TCGEMM_RETURN_IF_ERROR(engine->Start(clock));
  return engine;
}

}  // namespace tcgemm
