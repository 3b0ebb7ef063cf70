// A MatmulResponse's account of itself.
#ifndef TCGEMM_CLIENT_PRODUCT_INFO_H_
#define TCGEMM_CLIENT_PRODUCT_INFO_H_

#include "client/client.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm::client {

// The server's part of it.
MatmulInfo MatmulInfoOf(const v1::MatmulResponse& response);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_PRODUCT_INFO_H_
