// Plants a data race in a handler. ThreadSanitizer, with the suppressions that gRPC needs, must
// report it: tests/heavy/sanitize.sh checks that it does.
#include <cstdio>
#include <thread>
#include <vector>

#include "tests/rpc/rpc_fixture.h"

namespace {

class RacyEvents final : public tcgemm::CountingEvents {
 public:
  void OnCallStarted(std::string_view method) override {
    ++unguarded_;  // the race
    CountingEvents::OnCallStarted(method);
  }
  int unguarded() const { return unguarded_; }

 private:
  int unguarded_ = 0;
};

}  // namespace

int main() {
  tcgemm::RpcFixture fixture({}, {}, std::make_unique<RacyEvents>());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 50; ++call) fixture.Call(tcgemm::RpcFixture::Ones());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("done\n");
  return 0;
}
