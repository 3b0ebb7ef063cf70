// A batch on its way through the device: where its matrices lie, the copies, the launches, and what
// its events say in the end.
#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/engine/device_slot.h"
#include "server/engine/device_worker.h"
#include "server/engine/in_place.h"
#include "server/engine/watchdog.h"

namespace tcgemm {

void DeviceWorker::SubmitBatch(Slot& slot) {
  slot.taken_at = clock_->Now();
  slot.flops = 0;
  slot.bytes_in = 0;
  slot.bytes_out = 0;
  slot.recorded = false;
  PlaceProblems(slot);
  predicted_ns_.fetch_add(slot.predicted.count());
  slot.status = slot.bands.empty() ? SubmitWhole(slot) : SubmitBands(slot);
  // Recorded after a failure too: copies that were asked for before it may still be under way, and
  // the jobs' memory must not go back to the pool under them.
  const absl::Status recorded = RecordEnd(slot);
  slot.recorded = recorded.ok();
  if (slot.status.ok()) slot.status = Note(DeviceErrorKind::kEvent, recorded);
}

absl::Status DeviceWorker::RecordEnd(Slot& slot) {
  if (slot.bands.empty()) return device_->Record(*slot.stream, *slot.finished);
  // Behind what both streams were asked for.
  TCGEMM_RETURN_IF_ERROR(device_->Record(*slot.stream, *slot.computed));
  TCGEMM_RETURN_IF_ERROR(device_->WaitFor(*slot.out_stream, *slot.computed));
  return device_->Record(*slot.out_stream, *slot.finished);
}

void DeviceWorker::PlaceProblems(Slot& slot) {
  const DeviceInfo& info = device_->info();
  std::vector<StackCandidate> candidates;
  candidates.reserve(slot.jobs.size());
  double bytes = 0;
  for (const QueuedJob& queued : slot.jobs) {
    candidates.push_back({queued.job.problem, queued.job.residents.on_device(),
                          /*in_region=*/queued.job.regions.any()});
    slot.flops += queued.job.problem.shape().flops();
    // Resident operands too: the kernel reads them.
    bytes += static_cast<double>(SlabBytes(queued.job.problem, info.pitch_alignment));
  }
  const InPlaceRule rule = {.reads_pinned = info.reads_pinned,
                            .pitch_alignment = info.pitch_alignment,
                            .max_bytes = options_.in_place_bytes};
  slot.in_place = info.unified_memory || StaysInPlace(candidates, rule);
  slot.batch =
      slot.in_place
          ? LeaveInPlace(candidates)
          : PlaceBatch(candidates, info.pitch_alignment,
                       slot.slab.data() + SlabFlagBytes(static_cast<int>(slot.jobs.size())));
  // Who reads pinned memory writes there, too, and a flag is written once in a blue moon.
  slot.flags_in_slab = !info.unified_memory && !info.reads_pinned;
  uint32_t* const flags =
      slot.flags_in_slab ? reinterpret_cast<uint32_t*>(slot.slab.data()) : slot.flags();
  for (size_t i = 0; i < slot.batch.problems.size(); ++i) {
    slot.flags()[i] = 0;
    slot.batch.problems[i].nonfinite = flags + i;
  }
  if (slot.in_place && !info.unified_memory) {
    const BusBytes bus = InPlaceBytes(candidates);
    slot.bytes_in = bus.in;
    slot.bytes_out = bus.out;
  }
  slot.bands.clear();
  // Alone. Not in bands, which would split K each in its own way, as the rate of the day has them.
  if (slot.jobs[0].job.fastest) {
    slot.batch.problems[0].workspace = RestOfSlab(slot.slab, candidates[0], info.pitch_alignment);
  } else if (!slot.in_place && slot.jobs.size() == 1) {
    slot.bands = PlanBands(candidates[0].problem, candidates[0].on_device, info.flops_per_second);
  }
  slot.copies_out = slot.flags_in_slab;
  for (const StackCandidate& candidate : candidates) {
    slot.copies_out |= !slot.in_place && !candidate.on_device.d;
  }
  slot.predicted = PredictedTime(
      {.flops = slot.flops, .bytes = bytes, .flops_per_second = info.flops_per_second});
}

absl::Status DeviceWorker::SubmitWhole(Slot& slot) {
  TCGEMM_RETURN_IF_ERROR(CopyBatchIn(slot));
  TCGEMM_RETURN_IF_ERROR(LaunchBatch(slot));
  return CopyBatchOut(slot);
}

absl::Status DeviceWorker::CopyBatchIn(Slot& slot) {
  if (!slot.in_place) {
    TCGEMM_RETURN_IF_ERROR(StartSlab(slot));
    for (size_t i = 0; i < slot.jobs.size(); ++i) {
      const Job& job = slot.jobs[i].job;
      TCGEMM_RETURN_IF_ERROR(CopyOperandsIn(
          slot, {.host = job.problem,
                 .placed = slot.batch.placed[i],
                 .on_device = job.residents.on_device(),
                 .one_memory = job.regions.operands_in_one_memory(job.problem.epilogue)}));
    }
  }
  return Note(DeviceErrorKind::kEvent, device_->Record(*slot.stream, *slot.copied_in));
}

absl::Status DeviceWorker::StartSlab(Slot& slot) {
  TCGEMM_RETURN_IF_ERROR(
      Note(DeviceErrorKind::kEvent, device_->Record(*slot.stream, *slot.started)));
  if (!slot.flags_in_slab) return absl::OkStatus();
  const size_t flag_bytes = slot.jobs.size() * sizeof(uint32_t);
  return Note(DeviceErrorKind::kCopy,
              device_->CopyIn(*slot.stream, {.destination = slot.slab.data(),
                                             .source = slot.flags(),
                                             .destination_pitch = flag_bytes,
                                             .source_pitch = flag_bytes,
                                             .row_bytes = flag_bytes,
                                             .rows = 1}));
}

absl::Status DeviceWorker::CopyOperandsIn(Slot& slot, const OperandsToCopy& operands) {
  const OperandCopies plan =
      PlanOperandCopies(operands.host, operands.placed, operands.on_device, operands.one_memory);
  for (int c = 0; c < plan.count; ++c) {
    TCGEMM_RETURN_IF_ERROR(
        Note(DeviceErrorKind::kCopy, device_->CopyIn(*slot.stream, plan.copies[c])));
  }
  slot.bytes_in += plan.payload_bytes;
  return absl::OkStatus();
}

absl::Status DeviceWorker::LaunchBatch(Slot& slot) {
  TCGEMM_RETURN_IF_ERROR(Launch(slot, slot.batch.problems));
  if (!slot.copies_out) return absl::OkStatus();  // `finished` follows
  return Note(DeviceErrorKind::kEvent, device_->Record(*slot.stream, *slot.computed));
}

absl::Status DeviceWorker::Launch(Slot& slot, absl::Span<const GemmProblem> problems) {
  const absl::StatusOr<Plan> plan = ChoosePlan(device_->plan_limits(), problems);
  TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kLaunch, plan.status()));
  slot.plan = *plan;
  TCGEMM_RETURN_IF_ERROR(
      Note(DeviceErrorKind::kLaunch, device_->Launch(*slot.stream, *plan, problems)));
  TellTensorMaps();
  return absl::OkStatus();
}

absl::Status DeviceWorker::CopyBatchOut(Slot& slot) {
  if (!slot.copies_out) return absl::OkStatus();
  for (size_t i = 0; i < slot.jobs.size(); ++i) {
    const Job& job = slot.jobs[i].job;
    if (job.residents.d != nullptr) continue;
    const Copy2d copy = PlanResultCopy(job.problem, slot.batch.placed[i]);
    if (CopyBytes(copy) == 0) continue;
    TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kCopy, device_->CopyOut(*slot.stream, copy)));
    slot.bytes_out += CopyBytes(copy);
  }
  return CopyFlagsOut(slot, *slot.stream);
}

absl::Status DeviceWorker::CopyFlagsOut(Slot& slot, Stream& stream) {
  if (!slot.flags_in_slab) return absl::OkStatus();
  const size_t flag_bytes = slot.jobs.size() * sizeof(uint32_t);
  return Note(DeviceErrorKind::kCopy, device_->CopyOut(stream, {.destination = slot.flags(),
                                                                .source = slot.slab.data(),
                                                                .destination_pitch = flag_bytes,
                                                                .source_pitch = flag_bytes,
                                                                .row_bytes = flag_bytes,
                                                                .rows = 1}));
}

absl::Status DeviceWorker::SubmitBands(Slot& slot) {
  const Job& job = slot.jobs[0].job;
  const GemmProblem& placed = slot.batch.problems[0];
  const OnDevice on_device = job.residents.on_device();
  TCGEMM_RETURN_IF_ERROR(StartSlab(slot));
  TCGEMM_RETURN_IF_ERROR(CopyOperandsIn(
      slot, {.host = job.problem,
             .placed = placed,
             .on_device = BeforeBands(placed, on_device),
             .one_memory = job.regions.operands_in_one_memory(job.problem.epilogue)}));
  for (size_t i = 0; i < slot.bands.size(); ++i) {
    const GemmProblem host = BandOf(job.problem, slot.bands[i]);
    const GemmProblem there = BandOf(placed, slot.bands[i]);
    TCGEMM_RETURN_IF_ERROR(CopyOperandsIn(
        slot,
        {.host = host, .placed = there, .on_device = WithBand(placed, on_device)}));  // A alone
    const Slot::BandEvents& events = slot.band_events[i];
    const auto note = [this](const absl::Status& status) {
      return Note(DeviceErrorKind::kEvent, status);
    };
    TCGEMM_RETURN_IF_ERROR(note(device_->Record(*slot.stream, *events.launched)));
    TCGEMM_RETURN_IF_ERROR(Launch(slot, {&there, 1}));
    TCGEMM_RETURN_IF_ERROR(note(device_->Record(*slot.stream, *events.computed)));
    TCGEMM_RETURN_IF_ERROR(note(device_->WaitFor(*slot.out_stream, *events.computed)));
    const Copy2d copy = PlanResultCopy(host, there);
    TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kCopy, device_->CopyOut(*slot.out_stream, copy)));
    slot.bytes_out += CopyBytes(copy);
  }
  return CopyFlagsOut(slot, *slot.out_stream);
}

void DeviceWorker::TellTensorMaps() {
  const TensorMapCounts now = device_->tensor_map_counts();
  const TensorMapCounts delta = {.hits = now.hits - told_maps_.hits,
                                 .misses = now.misses - told_maps_.misses};
  told_maps_ = now;
  if (delta.hits > 0 || delta.misses > 0) events_->OnTensorMaps(delta);
}

absl::Status DeviceWorker::MeasureBatch(Slot& slot, JobTimings& timings) {
  const auto measure = [&](Event& from, Event& to, Nanos& time) {
    const absl::StatusOr<Nanos> elapsed = device_->Elapsed(from, to);
    if (elapsed.ok()) time = *elapsed;
    return Note(DeviceErrorKind::kEvent, elapsed.status());
  };
  if (!slot.bands.empty()) {
    for (size_t i = 0; i < slot.bands.size(); ++i) {
      Nanos band{0};
      TCGEMM_RETURN_IF_ERROR(
          measure(*slot.band_events[i].launched, *slot.band_events[i].computed, band));
      timings.kernel += band;
    }
    // Between the kernels one stream copied in; what the other one did meanwhile costs no time.
    TCGEMM_RETURN_IF_ERROR(measure(*slot.started, *slot.computed, timings.copy_in));
    timings.copy_in = std::max(Nanos(0), timings.copy_in - timings.kernel);
    return measure(*slot.computed, *slot.finished, timings.copy_out);
  }
  Event& kernel_end = slot.copies_out ? *slot.computed : *slot.finished;
  TCGEMM_RETURN_IF_ERROR(measure(*slot.copied_in, kernel_end, timings.kernel));
  if (slot.in_place) return absl::OkStatus();
  TCGEMM_RETURN_IF_ERROR(measure(*slot.started, *slot.copied_in, timings.copy_in));
  return slot.copies_out ? measure(*slot.computed, *slot.finished, timings.copy_out)
                         : absl::OkStatus();
}

}  // namespace tcgemm
