#include "server/rpc/stream_results.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/crc32c.h"

namespace tcgemm {
namespace {

// A panel of D while gRPC reads it.
struct HeldPanel {
  HeldPanel(Lease the_lease, std::function<void()> the_on_gone)
      : lease(std::move(the_lease)), on_gone(std::move(the_on_gone)) {}
  ~HeldPanel() {
    lease.Reset();
    on_gone();
  }

  Lease lease;
  const std::function<void()> on_gone;
};

grpc::ByteBuffer MakeMessage(const std::shared_ptr<HeldPanel>& panel, std::byte* data,
                             size_t offset, size_t bytes) {
  const std::string header =
      EncodeResultPanel({.offset = offset, .crc32c = Crc32c(data, bytes), .bytes = bytes});
  auto* const held = new std::shared_ptr<HeldPanel>(panel);
  const grpc::Slice slices[] = {
      grpc::Slice(header),
      grpc::Slice(
          data, bytes, [](void* it) { delete static_cast<std::shared_ptr<HeldPanel>*>(it); }, held),
  };
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace

StreamResults::StreamResults(const StreamPlan& plan)
    : panels_(plan.panels),
      shape_{.m = plan.layout.d.rows, .n = plan.layout.d.cols, .k = plan.layout.a.op_cols()},
      row_bytes_(plan.layout.d_is_resident
                     ? 0
                     : static_cast<size_t>(plan.layout.d.cols) * DTypeSize(plan.layout.d.dtype)) {}

std::vector<grpc::ByteBuffer> StreamResults::Add(int64_t index, Result result) {
  AddTimings({.m = result.layout.rows, .n = shape_.n, .k = shape_.k}, result.outcome);
  early_.emplace(index, std::move(result));
  std::vector<grpc::ByteBuffer> messages;
  for (auto first = early_.begin(); first != early_.end() && first->first == next_;
       first = early_.begin()) {
    MakeMessages(std::move(first->second), messages);
    early_.erase(first);
    ++next_;
  }
  return messages;
}

void StreamResults::MakeMessages(Result result, std::vector<grpc::ByteBuffer>& messages) const {
  std::byte* const data = result.outcome.memory.data() + result.layout.d_offset;
  const size_t offset = static_cast<size_t>(result.layout.first_row) * row_bytes_;
  const size_t end = static_cast<size_t>(result.layout.rows) * row_bytes_;
  const auto panel =
      std::make_shared<HeldPanel>(std::move(result.outcome.memory), std::move(result.on_gone));
  for (size_t at = 0; at < end; at += kMaxResultPanelBytes) {
    const size_t bytes = std::min(end - at, kMaxResultPanelBytes);
    messages.push_back(MakeMessage(panel, data + at, offset + at, bytes));
  }
}

void StreamResults::AddTimings(const GemmShape& shape, const JobOutcome& outcome) {
  JobTimings& sum = timings_.job;
  sum.queue += outcome.timings.queue;
  sum.copy_in += outcome.timings.copy_in;
  sum.copy_out += outcome.timings.copy_out;
  // A launch may hold several panels, and other requests: the panel's share by its FLOPs.
  if (outcome.tflops > 0) {
    const std::chrono::duration<double> seconds(shape.flops() / (outcome.tflops * 1e12));
    sum.kernel += std::chrono::duration_cast<Nanos>(seconds);
  }
  timings_.kernel = outcome.kernel;
  timings_.batched_with = std::max(timings_.batched_with, outcome.batched_with);
}

}  // namespace tcgemm
