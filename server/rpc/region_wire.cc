#include "server/rpc/region_wire.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

// One number.
constexpr size_t kMaxRequestBytes = 4096;

}  // namespace

absl::StatusOr<size_t> ParseHoldRegion(const grpc::ByteBuffer& request) {
  if (request.Length() > kMaxRequestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request has ", request.Length(), " bytes, limit ", kMaxRequestBytes));
  }
  std::vector<grpc::Slice> slices;
  if (!request.Dump(&slices).ok()) return absl::InternalError("unreadable message");
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  v1::HoldRegionRequest message;
  if (!message.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("the request is not a tcgemm.v1.HoldRegionRequest");
  }
  if (message.bytes() >= 1) return static_cast<size_t>(message.bytes());
  return absl::InvalidArgumentError(
      absl::StrCat("bytes is ", message.bytes(), ", must be at least 1"));
}

grpc::ByteBuffer EncodeHeldRegion(const SharedRegion& region, const RegionToken& token,
                                  const std::string& socket) {
  v1::HoldRegionResponse response;
  response.set_region(region.identity().name);
  response.set_side_socket(socket);
  response.set_token(token.data(), token.size());
  response.set_bytes(static_cast<int64_t>(region.bytes()));
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace tcgemm
