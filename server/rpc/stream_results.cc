#include "server/rpc/stream_results.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/crc32c.h"
#include "server/rpc/slice_owner.h"

namespace tcgemm {
namespace {

// A panel of D while gRPC reads it.
class HeldPanel {
 public:
  explicit HeldPanel(StreamResults::Result result)
      : lease_(std::move(result.outcome.memory)), on_gone_(std::move(result.on_gone)) {}
  HeldPanel(const HeldPanel&) = delete;
  HeldPanel& operator=(const HeldPanel&) = delete;
  ~HeldPanel() {
    lease_.Reset();
    on_gone_();
  }
  std::byte* data() const { return lease_.data(); }

 private:
  Lease lease_;
  const std::function<void()> on_gone_;
};

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
  const PanelLayout layout = result.layout;
  const size_t offset = static_cast<size_t>(layout.first_row) * row_bytes_;
  const size_t end = static_cast<size_t>(layout.rows) * row_bytes_;
  const SliceOwner<HeldPanel> panel(std::move(result));
  for (size_t at = 0; at < end; at += kMaxResultPanelBytes) {
    const size_t bytes = std::min(end - at, kMaxResultPanelBytes);
    std::byte* const data = panel->data() + layout.d_offset + at;
    const std::string header =
        EncodeResultPanel({.offset = offset + at, .crc32c = Crc32c(data, bytes), .bytes = bytes});
    const grpc::Slice slices[] = {grpc::Slice(header), panel.MakeSlice(data, bytes)};
    messages.emplace_back(slices, 2);
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
