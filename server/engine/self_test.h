// Is this machine computing rightly? Asked once, before anyone is served.
#ifndef TCGEMM_SERVER_ENGINE_SELF_TEST_H_
#define TCGEMM_SERVER_ENGINE_SELF_TEST_H_

#include "absl/status/status.h"
#include "server/engine/engine.h"

namespace tcgemm {

// Multiplies seeded random matrices of several shapes (odd ones too), in all four layouts and both
// output types, through Submit, some of them in one batch, and compares every element with the
// float64 reference. INTERNAL, with the product and its worst element, on a mismatch; a job's own
// status, with the product named, when it fails. Needs a host pool of 1 MiB and blocks until done.
absl::Status RunSelfTest(Engine& engine);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_SELF_TEST_H_
