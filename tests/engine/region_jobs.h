// Jobs whose matrices lie in shared memory, for the engine's tests.
#ifndef TCGEMM_TESTS_ENGINE_REGION_JOBS_H_
#define TCGEMM_TESTS_ENGINE_REGION_JOBS_H_

#include <cstddef>
#include <cstdint>

#include "server/engine/engine.h"

namespace tcgemm {

// Blocks until it is open; fails the test when it cannot be.
SharedRegionRef OpenRegion(Engine& engine, size_t bytes, const Caller& caller = {"uid:1"});

// Writes an operand of a job, which lies in its memory, to `at` with another ld; it lies there
// then.
void MoveOperand(MatrixView& operand, std::byte* at, int64_t ld);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_ENGINE_REGION_JOBS_H_
