#include "server/telemetry/nvml_reader.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/telemetry/nvml_abi.h"

namespace tcgemm {
namespace {

// More than that in one period would be a device that does nothing else.
constexpr int kMaxXidsAtOnce = 64;
// The shortest wait that the guide knows; it says nothing of 0.
constexpr unsigned kEventWaitMs = 1;

// What dlsym finds, as whatever function it is.
class Symbol {
 public:
  explicit Symbol(void* address) : address_(address) {}
  template <typename Function>
  operator Function*() const {  // NOLINT: the conversion is what it is for
    return reinterpret_cast<Function*>(address_);
  }

 private:
  void* const address_;
};

class Library {
 public:
  static absl::StatusOr<std::unique_ptr<Library>> Load(const std::string& path) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return absl::NotFoundError(dlerror());
    auto library = std::unique_ptr<Library>(new Library(handle));
    const nvml::Functions& f = library->functions_;
    if (f.init == nullptr || f.shutdown == nullptr || f.error_string == nullptr ||
        f.handle_by_pci_bus_id == nullptr) {
      return absl::NotFoundError(absl::StrCat(path, " has not the functions of NVML"));
    }
    return library;
  }
  ~Library() { dlclose(handle_); }

  const nvml::Functions& functions() const { return functions_; }
  absl::Status Error(const std::string& what, nvml::Return code) const {
    return absl::UnavailableError(
        absl::StrCat("NVML: ", what, ": ", functions_.error_string(code), " (", code, ")"));
  }

 private:
  explicit Library(void* handle) : handle_(handle) {
    functions_ = {.init = Find("nvmlInit_v2"),
                  .shutdown = Find("nvmlShutdown"),
                  .error_string = Find("nvmlErrorString"),
                  .handle_by_pci_bus_id = Find("nvmlDeviceGetHandleByPciBusId_v2"),
                  .utilization = Find("nvmlDeviceGetUtilizationRates"),
                  .memory = Find("nvmlDeviceGetMemoryInfo"),
                  .power = Find("nvmlDeviceGetPowerUsage"),
                  .power_limit = Find("nvmlDeviceGetEnforcedPowerLimit"),
                  .clock = Find("nvmlDeviceGetClockInfo"),
                  .max_clock = Find("nvmlDeviceGetMaxClockInfo"),
                  .temperature = Find("nvmlDeviceGetTemperature"),
                  .throttle = Find("nvmlDeviceGetCurrentClocksEventReasons"),
                  .ecc_errors = Find("nvmlDeviceGetTotalEccErrors"),
                  .event_set_create = Find("nvmlEventSetCreate"),
                  .register_events = Find("nvmlDeviceRegisterEvents"),
                  .event_set_wait = Find("nvmlEventSetWait_v2"),
                  .event_set_free = Find("nvmlEventSetFree")};
    if (functions_.throttle == nullptr) {  // before driver 535
      functions_.throttle = Find("nvmlDeviceGetCurrentClocksThrottleReasons");
    }
  }
  Symbol Find(const char* name) const { return Symbol(dlsym(handle_, name)); }

  void* const handle_;
  nvml::Functions functions_;
};

// After these no later call succeeds either, until NVML is initialised anew.
bool IsFatal(nvml::Return code) {
  return code == nvml::kUninitialized || code == nvml::kDriverNotLoaded ||
         code == nvml::kGpuIsLost || code == nvml::kResetRequired ||
         code == nvml::kLibRmVersionMismatch;
}

// Asks one device one thing after the other, until an answer says that there will be no more.
class Questions {
 public:
  explicit Questions(nvml::DeviceHandle* device) : device_(device) {}

  template <typename Value, typename Function, typename... Arguments>
  std::optional<Value> Ask(Function* function, Arguments... arguments) {
    if (function == nullptr || IsFatal(last_error_)) return std::nullopt;
    Value value{};
    const nvml::Return code = function(device_, arguments..., &value);
    if (code == nvml::kSuccess) {
      answered_ = true;
      return value;
    }
    last_error_ = code;
    return std::nullopt;
  }
  // Something was answered, and nothing said that the device is gone.
  bool ok() const { return answered_ && !IsFatal(last_error_); }
  nvml::Return last_error() const { return last_error_; }

 private:
  nvml::DeviceHandle* const device_;
  bool answered_ = false;
  nvml::Return last_error_ = nvml::kSuccess;
};

// No GPU comes near these: a value above its limit is not known (docs/adr/0020). In NVML's units.
constexpr unsigned kMaxPercent = 100;
constexpr unsigned kMaxMilliwatts = 10'000'000;
constexpr unsigned kMaxMegahertz = 10'000;
constexpr unsigned kMaxCelsius = 200;

std::optional<double> Scaled(std::optional<unsigned> value, unsigned limit, double unit) {
  if (!value.has_value() || *value > limit) return std::nullopt;
  return static_cast<double>(*value) * unit;
}

class NvmlReader final : public GpuReader {
 public:
  explicit NvmlReader(std::unique_ptr<Library> library)
      : library_(std::move(library)), nvml_(library_->functions()) {}
  ~NvmlReader() override;

  absl::Status Start(const std::string& pci_id);
  absl::StatusOr<std::vector<uint64_t>> TakeXids() override;
  absl::StatusOr<GpuReading> Read() override;

 private:
  void WatchXids();

  const std::unique_ptr<Library> library_;
  const nvml::Functions& nvml_;
  bool started_ = false;
  nvml::DeviceHandle* device_ = nullptr;
  nvml::EventSetHandle* events_ = nullptr;  // null: the device has none
};

NvmlReader::~NvmlReader() {
  if (events_ != nullptr) nvml_.event_set_free(events_);
  if (started_) nvml_.shutdown();
}

absl::Status NvmlReader::Start(const std::string& pci_id) {
  nvml::Return code = nvml_.init();
  if (code != nvml::kSuccess) return library_->Error("it does not start", code);
  started_ = true;
  code = nvml_.handle_by_pci_bus_id(pci_id.c_str(), &device_);
  if (code != nvml::kSuccess) {
    return library_->Error(absl::StrCat("no GPU at ", pci_id), code);
  }
  WatchXids();
  return absl::OkStatus();
}

void NvmlReader::WatchXids() {
  if (nvml_.event_set_create == nullptr || nvml_.register_events == nullptr ||
      nvml_.event_set_wait == nullptr || nvml_.event_set_free == nullptr) {
    return;
  }
  nvml::EventSetHandle* events = nullptr;
  if (nvml_.event_set_create(&events) != nvml::kSuccess) return;
  if (nvml_.register_events(device_, nvml::kEventXid, events) == nvml::kSuccess) {
    events_ = events;
  } else {
    nvml_.event_set_free(events);
  }
}

absl::StatusOr<std::vector<uint64_t>> NvmlReader::TakeXids() {
  std::vector<uint64_t> xids;
  if (events_ == nullptr) return xids;
  for (int i = 0; i < kMaxXidsAtOnce; ++i) {
    nvml::EventData event{};
    const nvml::Return code = nvml_.event_set_wait(events_, &event, kEventWaitMs);
    // What was taken is told first; the next call meets the error again.
    if (IsFatal(code) && xids.empty()) return library_->Error("waiting for events", code);
    if (code != nvml::kSuccess) break;
    if (event.type == nvml::kEventXid) xids.push_back(event.data);
  }
  return xids;
}

absl::StatusOr<GpuReading> NvmlReader::Read() {
  Questions device(device_);
  GpuReading reading;
  if (const auto rates = device.Ask<nvml::Utilization>(nvml_.utilization); rates.has_value()) {
    reading.utilization = Scaled(rates->gpu, kMaxPercent, 0.01);
  }
  if (const auto memory = device.Ask<nvml::Memory>(nvml_.memory);
      memory.has_value() && memory->used <= memory->total) {
    reading.memory_used_bytes = static_cast<double>(memory->used);
    reading.memory_total_bytes = static_cast<double>(memory->total);
  }
  reading.power_watts = Scaled(device.Ask<unsigned>(nvml_.power), kMaxMilliwatts, 1e-3);
  reading.power_limit_watts = Scaled(device.Ask<unsigned>(nvml_.power_limit), kMaxMilliwatts, 1e-3);
  reading.sm_clock_hertz =
      Scaled(device.Ask<unsigned>(nvml_.clock, nvml::kClockSm), kMaxMegahertz, 1e6);
  reading.max_sm_clock_hertz =
      Scaled(device.Ask<unsigned>(nvml_.max_clock, nvml::kClockSm), kMaxMegahertz, 1e6);
  reading.temperature_celsius =
      Scaled(device.Ask<unsigned>(nvml_.temperature, nvml::kTemperatureGpu), kMaxCelsius, 1);
  if (const auto bits = device.Ask<unsigned long long>(nvml_.throttle); bits.has_value()) {
    static_assert(nvml::kThrottleBits.size() == kThrottleReasonCount);
    std::array<bool, kThrottleReasonCount>& throttle = reading.throttle.emplace();
    for (int i = 0; i < kThrottleReasonCount; ++i) {
      throttle[i] = (*bits & nvml::kThrottleBits[i]) != 0;
    }
  }
  reading.ecc_corrected =
      device.Ask<unsigned long long>(nvml_.ecc_errors, nvml::kEccCorrected, nvml::kEccVolatile);
  reading.ecc_uncorrected =
      device.Ask<unsigned long long>(nvml_.ecc_errors, nvml::kEccUncorrected, nvml::kEccVolatile);
  if (!device.ok()) return library_->Error("no answer about the GPU", device.last_error());
  return reading;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuReader>> OpenNvml(const NvmlOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Library> library, Library::Load(options.library));
  auto reader = std::make_unique<NvmlReader>(std::move(library));
  TCGEMM_RETURN_IF_ERROR(reader->Start(options.pci_id));
  return reader;
}

}  // namespace tcgemm
