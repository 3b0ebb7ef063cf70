// The names of tcgemm.v1.MatmulService's methods, in the proto's order, for who counts calls.
#ifndef TCGEMM_SERVER_RPC_SERVICE_METHODS_H_
#define TCGEMM_SERVER_RPC_SERVICE_METHODS_H_

#include <string>
#include <vector>

namespace tcgemm {

std::vector<std::string> ServiceMethods();

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_SERVICE_METHODS_H_
