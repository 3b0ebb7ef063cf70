#include "client/stream_wire.h"

#include "absl/status/status.h"
#include "base/crc32c.h"
#include "client/wire_reader.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm::client {
namespace {

constexpr uint32_t kOffset = v1::Panel::kOffsetFieldNumber;
constexpr uint32_t kCrc = v1::Panel::kCrc32CFieldNumber;
constexpr uint32_t kData = v1::Panel::kDataFieldNumber;

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void AppendBytesHeader(std::string& out, uint32_t field, size_t length) {
  AppendVarint(out, WireTag(field, WireType::kBytes));
  AppendVarint(out, length);
}

void FillOperand(const StreamedOperand& from, v1::Operand& to) {
  to.set_transposed(from.transposed);
  if (!from.handle.empty()) {
    to.set_handle(from.handle);
    return;
  }
  to.set_rows(from.rows);
  to.set_cols(from.cols);
  to.set_dtype(v1::BF16);
}

StreamHeader HeaderOf(const v1::MatmulResponse& response) {
  const v1::Timings& times = response.timings();
  return {.rows = response.rows(),
          .cols = response.cols(),
          .dtype = response.dtype() == v1::FP32 ? DType::kFp32 : DType::kBf16,
          .handle = response.handle(),
          .info = {.kernel = response.kernel(),
                   .tflops = response.tflops(),
                   .batched_with = response.batched_with(),
                   .receive = Nanos(times.receive_ns()),
                   .decode = Nanos(times.decode_ns()),
                   .queue = Nanos(times.queue_ns()),
                   .copy_in = Nanos(times.copy_in_ns()),
                   .kernel_time = Nanos(times.kernel_ns()),
                   .verify = Nanos(times.verify_ns()),
                   .copy_out = Nanos(times.copy_out_ns())}};
}

// False when it does not parse.
bool ReadPanel(WireReader reader, StreamResponse::Panel& panel) {
  while (const uint32_t tag = reader.ReadTag()) {
    switch (tag) {
      case WireTag(kOffset, WireType::kVarint):
        panel.offset = reader.ReadVarint();
        break;
      case WireTag(kCrc, WireType::kFixed32):
        panel.crc32c = reader.ReadFixed32();
        break;
      case WireTag(kData, WireType::kBytes):
        panel.data = reader.ReadMessage().RestInPieces();
        break;
      default:
        reader.Skip(tag);
    }
  }
  return reader.ok();
}

}  // namespace

std::string EncodeStreamHeader(const StreamedProduct& product) {
  v1::MatmulStreamRequest message;
  v1::MatmulRequest& header = *message.mutable_header();
  FillOperand(product.a, *header.mutable_a());
  FillOperand(product.b, *header.mutable_b());
  header.set_output_dtype(product.output == DType::kFp32 ? v1::FP32 : v1::BF16);
  if (product.keep) header.mutable_output()->set_handle(product.keep_name);
  const FactorEpilogue& epilogue = product.epilogue;
  if (epilogue.alpha != 1) header.set_alpha(epilogue.alpha);
  if (epilogue.beta != 0) header.set_beta(epilogue.beta);
  if (epilogue.c.has_value()) header.mutable_c()->set_handle(epilogue.c->handle);
  if (epilogue.bias.has_value()) header.mutable_bias()->set_handle(epilogue.bias->handle);
  header.set_activation(static_cast<v1::Activation>(epilogue.activation));
  return message.SerializeAsString();
}

std::string EncodePanelStart(StreamField field, size_t offset, absl::Span<const char> data) {
  v1::Panel panel;
  panel.set_offset(static_cast<int64_t>(offset));
  panel.set_crc32c(Crc32c(data.data(), data.size()));
  std::string fields = panel.SerializeAsString();
  AppendBytesHeader(fields, kData, data.size());
  std::string start;
  AppendBytesHeader(start, static_cast<uint32_t>(field), fields.size() + data.size());
  return start + fields;
}

absl::StatusOr<StreamResponse> DecodeStreamResponse(absl::Span<const absl::string_view> slices) {
  StreamResponse response;
  WireReader reader(slices);
  bool ok = true;
  while (const uint32_t tag = reader.ReadTag()) {
    if (tag == WireTag(v1::MatmulStreamResponse::kHeaderFieldNumber, WireType::kBytes)) {
      v1::MatmulResponse header;
      ok = header.ParseFromString(reader.ReadMessage().ReadRest()) && ok;
      response.header = HeaderOf(header);
      response.panel.reset();
    } else if (tag == WireTag(v1::MatmulStreamResponse::kDFieldNumber, WireType::kBytes)) {
      response.header.reset();
      response.panel = StreamResponse::Panel{};
      ok = ReadPanel(reader.ReadMessage(), *response.panel) && ok;
    } else {
      reader.Skip(tag);
    }
  }
  if (ok && reader.ok()) return response;
  return absl::DataLossError("a response is not a MatmulStreamResponse");
}

}  // namespace tcgemm::client
