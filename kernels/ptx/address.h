// Addresses in shared memory, as PTX instructions take them: 32 bits from the start of the window.
// PTX ISA, "Data Movement and Conversion Instructions: cvta". This folder names sections of the ISA
// by title: their numbers move with every release.
#ifndef TCGEMM_KERNELS_PTX_ADDRESS_H_
#define TCGEMM_KERNELS_PTX_ADDRESS_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

TCGEMM_DEVICE uint32_t SharedAddress(const void* pointer) {
  uint64_t address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
  return static_cast<uint32_t>(address);
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_ADDRESS_H_
