#include "client/lanes.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "client/channel.h"

namespace tcgemm::client {
namespace {

v1::UploadMatrixRequest::Header JoinHeader(const Filling& filling) {
  v1::UploadMatrixRequest::Header header;
  header.set_handle(filling.handle);
  header.set_generation(filling.generation);
  header.set_rows(filling.matrix.rows);
  header.set_cols(filling.matrix.cols);
  header.set_dtype(v1::BF16);
  return header;
}

// The failure that says most about a round: one that no retry mends, else the first.
class Failures {
 public:
  // True: the round cannot succeed any more.
  bool Add(Attempt attempt) {
    if (attempt.status.ok()) return false;
    const MutexLock lock(&mutex_);
    const bool last = !MayRetry(attempt);
    if (worst_.status.ok() || (last && MayRetry(worst_))) worst_ = std::move(attempt);
    return last;
  }
  Attempt Worst() const {
    const MutexLock lock(&mutex_);
    return worst_;
  }

 private:
  mutable Mutex mutex_;
  Attempt worst_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

Lanes::Lanes(ClientOptions options, std::shared_ptr<grpc::Channel> first)
    : options_(std::move(options)), first_(std::move(first)) {}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Lanes::Connection(int lane) {
  if (lane == 0) return first_;
  const MutexLock lock(&mutex_);
  while (others_.size() < static_cast<size_t>(lane)) {
    TCGEMM_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options_));
    others_.push_back(std::move(channel));
  }
  return others_[static_cast<size_t>(lane) - 1];
}

Attempt Lanes::Run(int lanes, TimePoint deadline,
                   const std::function<Attempt(int lane, const StreamPath& path)>& work) {
  CallGroup group;
  Failures failures;
  const auto run = [&](int lane) {
    const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connection(lane);
    const StreamPath path{
        .channel = channel.ok() ? *channel : nullptr, .group = &group, .deadline = deadline};
    Attempt attempt = channel.ok() ? work(lane, path) : Attempt{.status = channel.status()};
    // Those that the group ended have nothing to tell.
    if (!group.cancelled() && failures.Add(std::move(attempt))) group.Cancel();
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(lanes));
  for (int lane = 1; lane < lanes; ++lane) threads.emplace_back(run, lane);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return failures.Worst();
}

Attempt Lanes::Fill(absl::Span<Filling> fillings, int lanes, TimePoint deadline) {
  std::deque<RangeQueue> queues;
  size_t pieces = 0;
  for (const Filling& filling : fillings) {
    queues.emplace_back(filling.missing, kPieceBytes);
    for (const Range& range : filling.missing) pieces += range.size() / kPieceBytes + 1;
  }
  lanes = static_cast<int>(std::min(static_cast<size_t>(lanes), pieces));
  Mutex mutex;  // of what the lanes find out
  Attempt attempt = Run(lanes, deadline, [&](int lane, const StreamPath& path) -> Attempt {
    // Lanes begin with different matrices, so that all get there at the same time.
    for (size_t i = 0; i < fillings.size(); ++i) {
      const size_t index = (i + static_cast<size_t>(lane)) % fillings.size();
      Filling& filling = fillings[index];
      if (queues[index].empty()) continue;
      const UploadOutcome outcome =
          SendRanges(path, JoinHeader(filling), filling.matrix, &queues[index]);
      if (!outcome.attempt.status.ok()) return outcome.attempt;
      const MutexLock lock(&mutex);
      filling.complete = filling.complete || outcome.answer.complete;
    }
    return {};
  });
  const bool complete = std::all_of(fillings.begin(), fillings.end(),
                                    [](const Filling& filling) { return filling.complete; });
  if (complete) return {};
  if (!attempt.status.ok()) return attempt;
  // A range that a broken stream had begun was not taken from another one, and then did not come.
  return {.status = absl::UnavailableError("the server does not have every range yet")};
}

Attempt Lanes::Fetch(Fetching& fetching, int lanes, TimePoint deadline) {
  std::deque<Range> waiting(fetching.missing.begin(), fetching.missing.end());
  std::vector<Range> left;
  Mutex mutex;  // of these and of the generation
  lanes = static_cast<int>(std::min(static_cast<size_t>(lanes), fetching.missing.size()));
  Attempt attempt = Run(lanes, deadline, [&](int /*lane*/, const StreamPath& path) -> Attempt {
    while (true) {
      DownloadRequest request{.handle = fetching.handle, .place = fetching.place};
      {
        const MutexLock lock(&mutex);
        if (waiting.empty()) return {};
        request.range = waiting.front();
        request.generation = fetching.generation;
        waiting.pop_front();
      }
      const DownloadOutcome outcome = ReceiveRange(path, request);
      const MutexLock lock(&mutex);
      if (outcome.generation != 0) {
        fetching.generation = fetching.generation == 0 ? outcome.generation : fetching.generation;
        if (fetching.generation != outcome.generation) {
          return {.status = absl::AbortedError("the matrix was replaced while it was read")};
        }
      }
      if (!outcome.attempt.status.ok()) {
        left.push_back(outcome.left);
        return outcome.attempt;
      }
    }
  });
  const MutexLock lock(&mutex);
  left.insert(left.end(), waiting.begin(), waiting.end());
  fetching.missing = std::move(left);
  return fetching.missing.empty() ? Attempt{} : attempt;
}

}  // namespace tcgemm::client
