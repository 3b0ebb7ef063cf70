#include "base/strand.h"

#include <utility>

namespace tcgemm {

Strand::Strand(ThreadPool* pool, Turn turn)
    : pool_(pool), turn_(turn), state_(std::make_shared<State>()) {}

void Strand::Post(std::function<void()> task) {
  {
    MutexLock lock(&state_->mutex);
    state_->tasks.push_back(std::move(task));
    if (std::exchange(state_->running, true)) return;
  }
  const auto run = [state = state_] { Run(state); };
  const bool scheduled =
      turn_ == Turn::kNext ? pool_->TryScheduleNext(run) : pool_->TrySchedule(run);
  if (!scheduled) run();
}

void Strand::Run(const std::shared_ptr<State>& state) {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&state->mutex);
      if (state->tasks.empty()) {
        state->running = false;
        return;
      }
      task = std::move(state->tasks.front());
      state->tasks.pop_front();
    }
    task();
  }
}

}  // namespace tcgemm
