#include "server/rpc/region_operands.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {

absl::Status RegionOperands::Find(RequestFields& fields) {
  if (fields.a.source == OperandFields::Source::kRegion) {
    TCGEMM_RETURN_IF_ERROR(FindOne("a.region", fields.a.region, regions_.a));
  }
  if (fields.b.source == OperandFields::Source::kRegion) {
    TCGEMM_RETURN_IF_ERROR(FindOne("b.region", fields.b.region, regions_.b));
  }
  if (fields.output.target == OutputFields::Target::kRegion) {
    TCGEMM_RETURN_IF_ERROR(FindOne("output.region", fields.output.region, regions_.d));
  }
  return absl::OkStatus();
}

absl::Status RegionOperands::FindOne(const std::string& field, RegionFields& region,
                                     SharedRegionRef& found) {
  if (store_->total_bytes() == 0) {
    return absl::UnimplementedError(
        absl::StrCat(field, ": this server shares no memory (--allow-shared-memory)"));
  }
  absl::StatusOr<SharedRegionRef> there = store_->Find(caller_, region.name);
  if (!there.ok()) {
    return absl::Status(there.status().code(),
                        absl::StrCat(field, ": ", std::string(there.status().message())));
  }
  found = *std::move(there);
  region.data = found->data();
  region.bytes = found->bytes();
  return absl::OkStatus();
}

}  // namespace tcgemm
