// The shared-memory regions of one Matmul request: looked up, and held while it runs.
#ifndef TCGEMM_SERVER_RPC_REGION_OPERANDS_H_
#define TCGEMM_SERVER_RPC_REGION_OPERANDS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/engine/job.h"
#include "server/engine/shared_region_store.h"
#include "server/rpc/matmul_wire.h"

namespace tcgemm {

// Not thread-safe: the stages of a call use it one after the other.
class RegionOperands {
 public:
  // `store` must outlive it.
  RegionOperands(const SharedRegionStore* store, Caller caller)
      : store_(store), caller_(std::move(caller)) {}

  // Finds the regions of A, B and D and fills in where they lie. NOT_FOUND, naming the field, when
  // there is none of that name or it is another caller's; UNIMPLEMENTED when this server shares no
  // memory.
  absl::Status Find(RequestFields& fields);
  const JobRegions& regions() const { return regions_; }
  // The call needs them no more. Before the client hears of it, who may want the room.
  void Release() { regions_ = {}; }

 private:
  absl::Status FindOne(const std::string& field, RegionFields& region, SharedRegionRef& found);

  const SharedRegionStore* const store_;
  const Caller caller_;
  JobRegions regions_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_REGION_OPERANDS_H_
