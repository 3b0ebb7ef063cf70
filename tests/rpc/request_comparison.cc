#include "tests/rpc/request_comparison.h"

#include <cstring>
#include <optional>

#include "server/engine/resident_store.h"

namespace tcgemm {
namespace {

OperandFields::Source SourceOf(const v1::Operand& operand) {
  switch (operand.source_case()) {
    case v1::Operand::kInline:
      return OperandFields::Source::kInline;
    case v1::Operand::kHandle:
      return OperandFields::Source::kHandle;
    case v1::Operand::kRegion:
      return OperandFields::Source::kRegion;
    case v1::Operand::SOURCE_NOT_SET:
      return OperandFields::Source::kNone;
  }
  return OperandFields::Source::kNone;
}

bool SameBits(const std::optional<float>& ours, bool has, float theirs) {
  if (ours.has_value() != has) return false;
  return !has || std::memcmp(&*ours, &theirs, sizeof(theirs)) == 0;  // NaN too
}

class Differences {
 public:
  void Check(bool same, const char* name) {
    if (!same) text_ += prefix_ + name + " ";
  }
  void CheckOperand(const std::string& name, const std::string& message, const OperandFields& ours,
                    bool has, const v1::Operand& theirs) {
    prefix_ = name + ".";
    Check(ours.present == has, "present");
    Check(ours.rows == theirs.rows(), "rows");
    Check(ours.cols == theirs.cols(), "cols");
    Check(ours.ld == theirs.ld(), "ld");
    Check(ours.dtype == theirs.dtype(), "dtype");
    Check(ours.transposed == theirs.transposed(), "transposed");
    Check(ours.source == SourceOf(theirs), "source");
    if (ours.source == OperandFields::Source::kInline) {
      Check(message.substr(ours.inline_position, ours.inline_bytes) == theirs.inline_(), "inline");
    }
    if (ours.source == OperandFields::Source::kHandle) {
      Check(theirs.handle().substr(0, ResidentStore::kMaxNameBytes + 1) == ours.handle, "handle");
    }
    if (ours.source == OperandFields::Source::kRegion) {
      CheckRegion("region", ours.region, theirs.region());
    }
    prefix_.clear();
  }
  void CheckRegion(const char* name, const RegionFields& ours, const v1::RegionRef& theirs) {
    Check(theirs.region().substr(0, ResidentStore::kMaxNameBytes + 1) == ours.name, name);
    Check(theirs.offset() == ours.offset, name);
  }
  const std::string& text() const { return text_; }

 private:
  std::string prefix_;
  std::string text_;
};

}  // namespace

std::string RequestDifference(const std::string& message, const RequestFields& ours,
                              const v1::MatmulRequest& theirs) {
  Differences d;
  d.CheckOperand("a", message, ours.a, theirs.has_a(), theirs.a());
  d.CheckOperand("b", message, ours.b, theirs.has_b(), theirs.b());
  d.Check(ours.output_dtype == theirs.output_dtype(), "output_dtype");
  d.CheckOperand("c", message, ours.c, theirs.has_c(), theirs.c());
  d.CheckOperand("bias", message, ours.bias, theirs.has_bias(), theirs.bias());
  d.Check(ours.output.present == theirs.has_output(), "output");
  using Target = OutputFields::Target;
  d.Check((ours.output.target == Target::kHandle) == theirs.output().has_handle(), "output.handle");
  d.Check((ours.output.target == Target::kRegion) == theirs.output().has_region(), "output.region");
  if (ours.output.target == Target::kHandle) {
    d.Check(
        theirs.output().handle().substr(0, ResidentStore::kMaxNameBytes + 1) == ours.output.handle,
        "output.handle");
  }
  if (ours.output.target == Target::kRegion) {
    d.CheckRegion("output.region", ours.output.region, theirs.output().region());
  }
  d.Check(ours.output.ttl_seconds == theirs.output().ttl_seconds(), "output.ttl_seconds");
  d.Check(SameBits(ours.epilogue.alpha, theirs.has_alpha(), theirs.alpha()), "alpha");
  d.Check(SameBits(ours.epilogue.beta, theirs.has_beta(), theirs.beta()), "beta");
  d.Check(ours.epilogue.activation == theirs.activation(), "activation");
  d.Check(ours.verify == theirs.verify(), "verify");
  d.Check(ours.priority == theirs.priority(), "priority");
  d.Check(ours.reduction == theirs.reduction(), "reduction");
  return d.text();
}

}  // namespace tcgemm
