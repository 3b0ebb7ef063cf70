// Launches that overlap: a kernel may start while the one before it in the stream still runs, if it
// was launched so (cudaLaunchAttributeProgrammaticStreamSerialization), and waits where it needs
// what that one wrote. PTX ISA, "griddepcontrol"; sm_90 and up. Without the launch attribute both
// do nothing.
#ifndef TCGEMM_KERNELS_PTX_GRID_DEPENDENCY_H_
#define TCGEMM_KERNELS_PTX_GRID_DEPENDENCY_H_

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// The kernels before this one have ended and their writes are seen by this thread. Before it a
// thread may touch nothing that they write, nor write what they read.
TCGEMM_DEVICE void WaitForPreviousGrid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// From this block's side the next kernel may start: once every block has said so, or ended, its
// blocks take what room there is. It says nothing about what this kernel has written.
TCGEMM_DEVICE void AllowNextGrid() { asm volatile("griddepcontrol.launch_dependents;" :::); }

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_GRID_DEPENDENCY_H_
