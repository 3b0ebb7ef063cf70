// MatmulStream's messages on the wire: the header by protobuf, panels by hand, so that their bytes
// stay where they are.
#ifndef TCGEMM_CLIENT_STREAM_WIRE_H_
#define TCGEMM_CLIENT_STREAM_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/stream_client.h"

namespace tcgemm::client {

// Of MatmulStreamRequest.
enum class StreamField : uint32_t { kHeader = 1, kA = 2, kB = 3 };

// The whole first message.
std::string EncodeStreamHeader(const StreamedProduct& product);

// A panel message up to its bytes, which follow it; with their CRC.
std::string EncodePanelStart(StreamField field, size_t offset, absl::Span<const char> data);

struct StreamHeader {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kBf16;
  std::string handle;
  MatmulInfo info;  // the server's part
};

// A MatmulStreamResponse: at most one is set.
struct StreamResponse {
  struct Panel {
    size_t offset = 0;
    std::optional<uint32_t> crc32c;
    std::vector<absl::string_view> data;  // where it lies
  };
  std::optional<StreamHeader> header;
  std::optional<Panel> panel;
};

// DATA_LOSS when the concatenated `slices`, any cut, do not parse. The result points into them.
absl::StatusOr<StreamResponse> DecodeStreamResponse(absl::Span<const absl::string_view> slices);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_STREAM_WIRE_H_
