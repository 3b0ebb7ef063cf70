#include "client/cli/any_size.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/advice.h"
#include "client/streaming_client.h"
#include "client/wire.h"

namespace tcgemm::client {
namespace {

// Smaller products fit every server that is worth asking, or are refused and streamed then.
constexpr double kAskFrom = 4 << 20;
// Of a message beside its matrices.
constexpr double kHeaders = 64 << 10;

double DenseBytes(const MatrixView& view) {
  return static_cast<double>(view.rows) * static_cast<double>(view.cols) *
         static_cast<double>(DTypeSize(view.dtype));
}

struct Sizes {
  double operands;  // of the request, gaps between rows counted as they travel at most
  double result;
};

Sizes SizesOf(const ProductViews& product) {
  const double d = static_cast<double>(product.a.op_rows()) *
                   static_cast<double>(product.b.op_cols()) *
                   static_cast<double>(DTypeSize(product.output));
  constexpr double kGaps = 1.25;  // EncodeMatmulRequest gathers rows that lie further apart
  const auto sent = [&](const MatrixView& view) {
    return DenseBytes(view) * (view.ld == view.cols ? 1 : kGaps);
  };
  return {.operands = sent(product.a) + sent(product.b) + kHeaders, .result = d + kHeaders};
}

}  // namespace

bool NeedsStream(const ProductViews& product, const ServerInfo& server) {
  const Sizes sizes = SizesOf(product);
  double message = static_cast<double>(kMaxMessageBytes);
  if (sizes.result > message) return true;
  if (server.max_message_bytes > 0) {
    message = std::min(message, static_cast<double>(server.max_message_bytes));
  }
  const double together = sizes.operands + sizes.result;
  const auto memory = static_cast<double>(server.max_request_memory_bytes);
  return sizes.operands > message || (memory > 0 && together > memory);
}

absl::StatusOr<AnySizeInfo> MultiplyAnySize(Client& client, const ClientOptions& server,
                                            const ProductViews& product, bool stream, Matrix& d,
                                            const CallOptions& options) {
  const Sizes sizes = SizesOf(product);
  const bool asked_for = stream;
  int64_t limit = static_cast<int64_t>(kMaxMessageBytes);
  // C and the bias would have to be on the server.
  const bool plain = !product.epilogue.reads_c() && !product.epilogue.has_bias();
  stream = stream || (plain && NeedsStream(product, {}));
  if (!stream && plain && sizes.operands + sizes.result > kAskFrom) {
    const absl::StatusOr<ServerInfo> info = client.GetServerInfo(options);
    stream = info.ok() && NeedsStream(product, *info);
    if (info.ok() && info->max_message_bytes > 0) limit = info->max_message_bytes;
  }
  if (!stream) {
    absl::StatusOr<MatmulInfo> made =
        client.MatmulWith(product.epilogue, product.a, product.b, product.output, d, options);
    if (made.ok()) return AnySizeInfo{.info = *std::move(made)};
    if (!plain || !IsRefusedSize(made.status())) return made.status();
  }
  TCGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<Client> streams, CreateStreamingClient(server));
  absl::StatusOr<MatmulInfo> made =
      streams->MatmulWith(product.epilogue, product.a, product.b, product.output, d, options);
  if (made.ok()) return AnySizeInfo{.info = *std::move(made), .streamed = true};
  if (asked_for || !absl::IsResourceExhausted(made.status())) return made.status();
  // Either limit may be raised.
  return absl::ResourceExhaustedError(
      absl::StrCat(std::string(made.status().message()),
                   "; streamed because it is more than one message may hold: ", limit,
                   " bytes (--max-message-bytes)"));
}

}  // namespace tcgemm::client
