// A Client that sends large products over several connections, and the others over one.
#ifndef TCGEMM_CLIENT_LANED_CLIENT_H_
#define TCGEMM_CLIENT_LANED_CLIENT_H_

#include <grpcpp/channel.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "client/client.h"

namespace tcgemm::client {

// `policy` is LanesFor (client/lane_policy.h). `single`, on `channel`, serves whatever goes over
// one connection. `options.lanes` is not 1.
//
// With a number of lanes each product goes over as many, and what the server says against it is an
// error. With 0 a product goes over several where that is faster; where the server keeps too
// little, or is too old, it goes over one after all (MatmulInfo.fallback says why), and for a
// minute so do all of at least that size without asking again. A product with an epilogue always
// goes over one.
std::unique_ptr<Client> MakeLanedClient(const ClientOptions& options,
                                        std::shared_ptr<grpc::Channel> channel,
                                        std::unique_ptr<Client> single,
                                        std::function<int(int asked, size_t bytes)> policy);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_LANED_CLIENT_H_
