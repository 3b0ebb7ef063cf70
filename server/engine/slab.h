// How the matrices of a batch lie in a slab of device memory, and the copies that bring them there.
//
// A slab starts with one 32-bit flag per job (its result holds a NaN or an Inf); then come A, B, C,
// bias and D of each job, as far as it has them, each on 256 bytes, rows padded to the device's
// pitch; but a bias that is a column is dense. A lease of server/rpc lays the same matrices out the
// same way, so that one copy can bring all operands.
#ifndef TCGEMM_SERVER_ENGINE_SLAB_H_
#define TCGEMM_SERVER_ENGINE_SLAB_H_

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"
#include "kernels/gemm.h"

namespace tcgemm {

// The matrices of a problem that lie in device memory already, as the problem says, with a pitch
// that the device can read: they take nothing of a slab, and nobody copies them.
struct OnDevice {
  bool a = false;
  bool b = false;
  bool c = false;
  bool bias = false;
  bool d = false;
};

// Bytes that the problem takes of a slab. SIZE_MAX when that overflows.
size_t SlabBytes(const GemmProblem& problem, int64_t pitch_alignment,
                 const OnDevice& on_device = {});

// Bytes of the flags of `jobs` jobs.
size_t SlabFlagBytes(int jobs);

// What is left of a slab of `slab_bytes` for matrices, beside the flags of `max_batch` jobs; 0 when
// not even they fit.
size_t SlabCapacity(size_t slab_bytes, int max_batch);

// `problem` with its matrices at `at`, which has SlabBytes(problem).
GemmProblem PlaceInSlab(const GemmProblem& problem, int64_t pitch_alignment, std::byte* at,
                        const OnDevice& on_device = {});

// The copies of A, B, C and the bias, from where the host has them to where PlaceInSlab put them;
// of D, back.
struct OperandCopies {
  Copy2d copies[4];
  int count = 0;             // 0 (K = 0) to 4
  size_t payload_bytes = 0;  // of the operands, without what lies between rows
};
// One copy for neighbours when they lie alike on both sides, in one piece of host memory, and what
// it brings beside them is little: asking the driver for a copy costs some 2 µs, in which a bus
// moves much more than 64 KiB. `one_memory`: what lies between the host's operands is the job's own
// too.
OperandCopies PlanOperandCopies(const GemmProblem& host, const GemmProblem& placed,
                                const OnDevice& on_device = {}, bool one_memory = true);
Copy2d PlanResultCopy(const GemmProblem& host, const GemmProblem& placed);

inline size_t CopyBytes(const Copy2d& copy) {
  return copy.row_bytes * static_cast<size_t>(copy.rows);
}

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_SLAB_H_
