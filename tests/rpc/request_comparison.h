// Our reading of a MatmulRequest against protobuf's.
#ifndef TCGEMM_TESTS_RPC_REQUEST_COMPARISON_H_
#define TCGEMM_TESTS_RPC_REQUEST_COMPARISON_H_

#include <string>

#include "server/rpc/matmul_wire.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {

// The fields of `message` that `ours` and `theirs` do not agree on: "a.rows b.inline "; empty when
// they agree.
std::string RequestDifference(const std::string& message, const RequestFields& ours,
                              const v1::MatmulRequest& theirs);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_RPC_REQUEST_COMPARISON_H_
