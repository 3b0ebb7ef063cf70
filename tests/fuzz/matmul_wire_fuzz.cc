// libFuzzer: ParseMatmulRequest judges any bytes, cut anywhere, as protobuf does.
//
// Two oracles. The outline: MatmulRequest with the fields into which our parser does not look (they
// are not built yet, or are checked later: handles, regions) as plain bytes; we accept exactly what
// it accepts. The full message: whatever it accepts, we read the same.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "server/rpc/matmul_wire.h"
#include "tcgemm/v1/matmul.pb.h"
#include "tests/rpc/request_comparison.h"

namespace tcgemm {
namespace {

namespace pb = google::protobuf;

class Outline {
 public:
  Outline() {
    pb::FileDescriptorProto file;
    v1::MatmulRequest::descriptor()->file()->CopyTo(&file);
    for (pb::DescriptorProto& message : *file.mutable_message_type()) {
      if (message.name() == "Operand" || message.name() == "OutputTarget") {
        MakeBytes(message, {"handle"});
      }
      if (message.name() == "RegionRef") MakeBytes(message, {"region"});
    }
    const pb::Descriptor* const request =
        pool_.BuildFile(file)->FindMessageTypeByName("MatmulRequest");
    message_.reset(factory_.GetPrototype(request)->New());
  }
  bool Accepts(const std::string& bytes) { return message_->ParseFromString(bytes); }

 private:
  static void MakeBytes(pb::DescriptorProto& message, const std::vector<std::string>& names) {
    for (pb::FieldDescriptorProto& field : *message.mutable_field()) {
      if (std::find(names.begin(), names.end(), field.name()) == names.end()) continue;
      field.set_type(pb::FieldDescriptorProto::TYPE_BYTES);
      field.clear_type_name();
    }
  }

  pb::DescriptorPool pool_;
  pb::DynamicMessageFactory factory_;
  std::unique_ptr<pb::Message> message_;
};

// Pieces of `size` bytes; one piece when that is 0.
std::vector<ByteSpan> Cut(const std::string& message, size_t size) {
  std::vector<ByteSpan> pieces;
  const size_t step = size == 0 ? std::max<size_t>(message.size(), 1) : size;
  for (size_t at = 0; at < message.size(); at += step) {
    pieces.push_back({reinterpret_cast<const uint8_t*>(message.data()) + at,
                      std::min(step, message.size() - at)});
  }
  return pieces;
}

[[noreturn]] void Complain(const char* what, const std::string& details) {
  std::fprintf(stderr, "matmul_wire_fuzz: %s: %s\n", what, details.c_str());
  std::abort();
}

}  // namespace
}  // namespace tcgemm

// The first byte says how the rest is cut.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  static tcgemm::Outline outline;
  if (size == 0) return 0;
  const std::string message(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto fields = tcgemm::ParseMatmulRequest(tcgemm::Cut(message, data[0]));
  if (fields.ok() != outline.Accepts(message)) {
    tcgemm::Complain("protobuf judges otherwise", fields.status().ToString());
  }
  tcgemm::v1::MatmulRequest theirs;
  if (!theirs.ParseFromString(message)) return 0;
  if (!fields.ok()) tcgemm::Complain("protobuf accepts", fields.status().ToString());
  const std::string difference = tcgemm::RequestDifference(message, *fields, theirs);
  if (!difference.empty()) tcgemm::Complain("fields differ", difference);
  return 0;
}
