// The part of NVML's C ABI that is used here, in our own words: nvml.h comes with the CUDA toolkit
// and the library with the driver, and neither is needed to build this. NVIDIA keeps these symbols
// and layouts for programs that are already built.
//
// Source: NVML API Reference Guide, https://docs.nvidia.com/deploy/nvml-api/ ; the section that
// documents each is named beside it. Not public.
#ifndef TCGEMM_SERVER_TELEMETRY_NVML_ABI_H_
#define TCGEMM_SERVER_TELEMETRY_NVML_ABI_H_

#include <array>

namespace tcgemm::nvml {

// nvmlReturn_t, an enum of C ("Enumerations"). Those that are told apart here.
enum Return : int {
  kSuccess = 0,
  kUninitialized = 1,
  kNotSupported = 3,
  kNotFound = 6,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kGpuIsLost = 15,
  kResetRequired = 16,
  kLibRmVersionMismatch = 18,
};

// nvmlDevice_t and nvmlEventSet_t: handles ("Device Queries", "Event Handling Methods").
struct DeviceHandle;
struct EventSetHandle;

// nvmlUtilization_t ("Device Structs"): percent of the last sample period, which is 1/6 to 1 s.
struct Utilization {
  unsigned gpu;
  unsigned memory;
};

// nvmlMemory_t ("Device Structs"), in bytes. `used` includes what the driver keeps for itself.
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// nvmlEventData_t of nvmlEventSetWait_v2 ("Event Handling Methods").
struct EventData {
  DeviceHandle* device;
  unsigned long long type;
  unsigned long long data;  // the Xid; 999 when NVML does not know it
  unsigned gpu_instance;    // of MIG
  unsigned compute_instance;
};
static_assert(sizeof(Utilization) == 8 && sizeof(Memory) == 24 && sizeof(EventData) == 32);

inline constexpr unsigned long long kEventXid = 0x8;  // nvmlEventTypeXidCriticalError
inline constexpr int kClockSm = 1;                    // NVML_CLOCK_SM of nvmlClockType_t
inline constexpr int kTemperatureGpu = 0;             // NVML_TEMPERATURE_GPU
inline constexpr int kEccCorrected = 0;               // NVML_MEMORY_ERROR_TYPE_CORRECTED
inline constexpr int kEccUncorrected = 1;             // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
inline constexpr int kEccVolatile = 0;                // NVML_VOLATILE_ECC

// nvmlClocksThrottleReason*, since driver 535 nvmlClocksEventReason* ("Clocks Event Reasons"), in
// the order of ThrottleReason.
inline constexpr std::array<unsigned long long, 9> kThrottleBits = {
    0x001,  // GpuIdle
    0x002,  // ApplicationsClocksSetting
    0x004,  // SwPowerCap
    0x008,  // HwSlowdown
    0x010,  // SyncBoost
    0x020,  // SwThermalSlowdown
    0x040,  // HwThermalSlowdown
    0x080,  // HwPowerBrakeSlowdown
    0x100,  // DisplayClockSetting
};

// "Initialization and Cleanup", "Error reporting".
using Init = Return();
using Shutdown = Return();
using ErrorString = const char*(Return);
// "Device Queries". Out-parameters, as C has them; power in milliwatts, clocks in MHz, temperature
// in degrees Celsius.
using GetHandleByPciBusId = Return(const char* pci_id, DeviceHandle** device);
using GetUtilization = Return(DeviceHandle*, Utilization*);
using GetMemory = Return(DeviceHandle*, Memory*);
using GetNumber = Return(DeviceHandle*, unsigned*);
using GetNumberOf = Return(DeviceHandle*, int kind, unsigned*);
using GetBits = Return(DeviceHandle*, unsigned long long*);
using GetEccErrors = Return(DeviceHandle*, int kind, int counter, unsigned long long*);
// "Event Handling Methods".
using EventSetCreate = Return(EventSetHandle**);
using RegisterEvents = Return(DeviceHandle*, unsigned long long types, EventSetHandle*);
using EventSetWait = Return(EventSetHandle*, EventData*, unsigned timeout_ms);
using EventSetFree = Return(EventSetHandle*);

// The symbols of the library; null where it has none.
struct Functions {
  Init* init = nullptr;                                 // nvmlInit_v2
  Shutdown* shutdown = nullptr;                         // nvmlShutdown
  ErrorString* error_string = nullptr;                  // nvmlErrorString
  GetHandleByPciBusId* handle_by_pci_bus_id = nullptr;  // nvmlDeviceGetHandleByPciBusId_v2
  GetUtilization* utilization = nullptr;                // nvmlDeviceGetUtilizationRates
  GetMemory* memory = nullptr;                          // nvmlDeviceGetMemoryInfo
  GetNumber* power = nullptr;                           // nvmlDeviceGetPowerUsage
  GetNumber* power_limit = nullptr;                     // nvmlDeviceGetEnforcedPowerLimit
  GetNumberOf* clock = nullptr;                         // nvmlDeviceGetClockInfo
  GetNumberOf* max_clock = nullptr;                     // nvmlDeviceGetMaxClockInfo
  GetNumberOf* temperature = nullptr;                   // nvmlDeviceGetTemperature
  GetBits* throttle = nullptr;  // nvmlDeviceGetCurrentClocksEventReasons, or …ThrottleReasons
  GetEccErrors* ecc_errors = nullptr;          // nvmlDeviceGetTotalEccErrors
  EventSetCreate* event_set_create = nullptr;  // nvmlEventSetCreate
  RegisterEvents* register_events = nullptr;   // nvmlDeviceRegisterEvents
  EventSetWait* event_set_wait = nullptr;      // nvmlEventSetWait_v2
  EventSetFree* event_set_free = nullptr;      // nvmlEventSetFree
};

}  // namespace tcgemm::nvml

#endif  // TCGEMM_SERVER_TELEMETRY_NVML_ABI_H_
