#include "tests/telemetry/fake_nvml.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "base/mutex.h"
#include "server/telemetry/nvml_abi.h"

// As NVML's own names in C, with the types of our declarations.
namespace {

using tcgemm::nvml::Return;

struct Answer {
  Return code = tcgemm::nvml::kSuccess;
  unsigned long long value = 0;
};

// A function: it is wanted while the library is loaded.
const std::map<std::string, Answer>& Healthy() {
  static const auto* const healthy = new std::map<std::string, Answer>{
      {"nvmlDeviceGetUtilizationRates", {.value = 37}},
      {"nvmlDeviceGetMemoryInfo", {.value = 5'000'000'000}},  // used; of 150 GB
      {"nvmlDeviceGetPowerUsage", {.value = 300'500}},
      {"nvmlDeviceGetEnforcedPowerLimit", {.value = 700'000}},
      {"nvmlDeviceGetClockInfo", {.value = 1755}},
      {"nvmlDeviceGetMaxClockInfo", {.value = 1980}},
      {"nvmlDeviceGetTemperature", {.value = 41}},
      {"nvmlDeviceGetCurrentClocksEventReasons", {.value = 0x4}},
      {"nvmlDeviceGetTotalEccErrors.0", {.value = 7}},
      {"nvmlDeviceGetTotalEccErrors.1", {.value = 0}},
  };
  return *healthy;
}
constexpr char kPciId[] = "0000:00:00.0";

class Script {
 public:
  void Reset() ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    Clear();
  }
  void SetAnswer(const std::string& function, Answer answer) ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    answers_[function] = answer;
  }
  void Hang(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    hanging_.insert(function);
  }
  void WaitForHang() ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    while (hung_ == 0) changed_.Wait(&mutex_);
  }
  void AddXid(unsigned long long xid) ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    xids_.push_back(xid);
  }
  void Opened(int by) ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    open_ += by;
  }
  int open() ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    return open_;
  }

  // What every function of NVML begins with.
  Answer Call(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    ReadFile();
    while (hanging_.count(function) > 0) {
      ++hung_;
      changed_.NotifyAll();
      changed_.Wait(&mutex_);
      --hung_;
    }
    const auto found = answers_.find(function);
    return found == answers_.end() ? Answer{} : found->second;
  }
  // The next Xid, or the wait timed out.
  Answer NextXid() ABSL_LOCKS_EXCLUDED(mutex_) {
    tcgemm::MutexLock lock(&mutex_);
    if (xids_.empty()) return {.code = tcgemm::nvml::kTimeout};
    const Answer answer = {.value = xids_.front()};
    xids_.pop_front();
    return answer;
  }

 private:
  void Clear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    answers_ = Healthy();
    hanging_.clear();
    xids_.clear();
    changed_.NotifyAll();
  }
  void ReadFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const char* const path = std::getenv("TCGEMM_FAKE_NVML");
    if (path == nullptr) return;
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    if (text.str() == file_) return;
    file_ = text.str();
    Clear();
    std::istringstream words(file_);
    for (std::string verb, function; words >> verb;) {
      unsigned long long value = 0;
      int code = 0;
      if (verb == "answer" && words >> function >> code >> value) {
        answers_[function] = {.code = static_cast<Return>(code), .value = value};
      } else if (verb == "hang" && words >> function) {
        hanging_.insert(function);
      } else if (verb == "xid" && words >> value) {
        xids_.push_back(value);
      }
    }
  }

  tcgemm::Mutex mutex_;
  tcgemm::CondVar changed_;
  std::map<std::string, Answer> answers_ ABSL_GUARDED_BY(mutex_) = Healthy();
  std::set<std::string> hanging_ ABSL_GUARDED_BY(mutex_);
  std::deque<unsigned long long> xids_ ABSL_GUARDED_BY(mutex_);
  int hung_ ABSL_GUARDED_BY(mutex_) = 0;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string file_ ABSL_GUARDED_BY(mutex_);
};

// Never destroyed: a call may hang in it when the process ends.
Script& TheScript() {
  static Script* const script = new Script;
  return *script;
}

template <typename Value>
Return Tell(const std::string& function, Value* value) {
  const Answer answer = TheScript().Call(function);
  if (answer.code == tcgemm::nvml::kSuccess) *value = static_cast<Value>(answer.value);
  return answer.code;
}

}  // namespace

__attribute__((constructor)) static void LoadLibrary() { TheScript().Call("dlopen"); }

extern "C" {

void FakeNvmlReset() { TheScript().Reset(); }
void FakeNvmlAnswer(const char* function, int code, unsigned long long value) {
  TheScript().SetAnswer(function, {.code = static_cast<Return>(code), .value = value});
}
void FakeNvmlHang(const char* function) { TheScript().Hang(function); }
void FakeNvmlWaitForHang() { TheScript().WaitForHang(); }
void FakeNvmlXid(unsigned long long xid) { TheScript().AddXid(xid); }
int FakeNvmlOpen() { return TheScript().open(); }

Return nvmlInit_v2() {
  const Return code = TheScript().Call("nvmlInit_v2").code;
  if (code == tcgemm::nvml::kSuccess) TheScript().Opened(1);
  return code;
}
Return nvmlShutdown() {
  TheScript().Opened(-1);
  return TheScript().Call("nvmlShutdown").code;
}
const char* nvmlErrorString(Return /*code*/) { return "as the test said"; }

Return nvmlDeviceGetHandleByPciBusId_v2(const char* pci_id, tcgemm::nvml::DeviceHandle** device) {
  if (std::strcmp(pci_id, kPciId) != 0) return tcgemm::nvml::kNotFound;
  *device = reinterpret_cast<tcgemm::nvml::DeviceHandle*>(&TheScript());
  return TheScript().Call("nvmlDeviceGetHandleByPciBusId_v2").code;
}
Return nvmlDeviceGetUtilizationRates(tcgemm::nvml::DeviceHandle*, tcgemm::nvml::Utilization* out) {
  return Tell("nvmlDeviceGetUtilizationRates", &out->gpu);
}
Return nvmlDeviceGetMemoryInfo(tcgemm::nvml::DeviceHandle*, tcgemm::nvml::Memory* out) {
  out->total = 150'000'000'000;
  return Tell("nvmlDeviceGetMemoryInfo", &out->used);
}
Return nvmlDeviceGetPowerUsage(tcgemm::nvml::DeviceHandle*, unsigned* out) {
  return Tell("nvmlDeviceGetPowerUsage", out);
}
Return nvmlDeviceGetEnforcedPowerLimit(tcgemm::nvml::DeviceHandle*, unsigned* out) {
  return Tell("nvmlDeviceGetEnforcedPowerLimit", out);
}
Return nvmlDeviceGetClockInfo(tcgemm::nvml::DeviceHandle*, int kind, unsigned* out) {
  if (kind != tcgemm::nvml::kClockSm) return tcgemm::nvml::kNotSupported;
  return Tell("nvmlDeviceGetClockInfo", out);
}
Return nvmlDeviceGetMaxClockInfo(tcgemm::nvml::DeviceHandle*, int kind, unsigned* out) {
  if (kind != tcgemm::nvml::kClockSm) return tcgemm::nvml::kNotSupported;
  return Tell("nvmlDeviceGetMaxClockInfo", out);
}
Return nvmlDeviceGetTemperature(tcgemm::nvml::DeviceHandle*, int sensor, unsigned* out) {
  if (sensor != tcgemm::nvml::kTemperatureGpu) return tcgemm::nvml::kNotSupported;
  return Tell("nvmlDeviceGetTemperature", out);
}
Return nvmlDeviceGetCurrentClocksEventReasons(tcgemm::nvml::DeviceHandle*,
                                              unsigned long long* out) {
  return Tell("nvmlDeviceGetCurrentClocksEventReasons", out);
}
Return nvmlDeviceGetTotalEccErrors(tcgemm::nvml::DeviceHandle*, int kind, int counter,
                                   unsigned long long* out) {
  if (counter != tcgemm::nvml::kEccVolatile) return tcgemm::nvml::kNotSupported;
  return Tell("nvmlDeviceGetTotalEccErrors." + std::to_string(kind), out);
}

Return nvmlEventSetCreate(tcgemm::nvml::EventSetHandle** set) {
  TheScript().Opened(1);
  *set = reinterpret_cast<tcgemm::nvml::EventSetHandle*>(&TheScript());
  return TheScript().Call("nvmlEventSetCreate").code;
}
Return nvmlDeviceRegisterEvents(tcgemm::nvml::DeviceHandle*, unsigned long long types,
                                tcgemm::nvml::EventSetHandle*) {
  if (types != tcgemm::nvml::kEventXid) return tcgemm::nvml::kNotSupported;
  return TheScript().Call("nvmlDeviceRegisterEvents").code;
}
Return nvmlEventSetWait_v2(tcgemm::nvml::EventSetHandle*, tcgemm::nvml::EventData* out,
                           unsigned /*timeout_ms*/) {
  const Return code = TheScript().Call("nvmlEventSetWait_v2").code;
  if (code != tcgemm::nvml::kSuccess) return code;
  const Answer xid = TheScript().NextXid();
  out->type = tcgemm::nvml::kEventXid;
  out->data = xid.value;
  return xid.code;
}
Return nvmlEventSetFree(tcgemm::nvml::EventSetHandle*) {
  TheScript().Opened(-1);
  return TheScript().Call("nvmlEventSetFree").code;
}

}  // extern "C"
