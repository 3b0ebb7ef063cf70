// MatmulStreamRequest and MatmulStreamResponse on the wire: panels are taken from where they lie,
// and D's leave from where the kernel wrote them.
#ifndef TCGEMM_SERVER_RPC_STREAM_WIRE_H_
#define TCGEMM_SERVER_RPC_STREAM_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/resident_transfers.h"
#include "server/rpc/matmul_wire.h"
#include "server/rpc/wire_reader.h"

namespace tcgemm {

// Of a panel's data that a client sends …
inline constexpr size_t kMaxPanelBytes = size_t{4} << 20;
// … and of one that a server sends: stock clients refuse messages above 4 MiB.
inline constexpr size_t kMaxResultPanelBytes = size_t{2} << 20;

struct StreamPanel {
  int64_t offset = 0;
  std::optional<uint32_t> crc32c;
  size_t position = 0;  // of the data in the message
  size_t bytes = 0;
};

// A tcgemm.v1.MatmulStreamRequest as it came: nothing checked yet. At most one is set.
struct StreamPart {
  std::optional<RequestFields> header;
  std::optional<StreamPanel> a;
  std::optional<StreamPanel> b;
};

// Accepts what protobuf accepts, as ParseMatmulRequest does. INVALID_ARGUMENT for bytes that are no
// such message.
absl::StatusOr<StreamPart> ParseStreamPart(absl::Span<const ByteSpan> pieces);

// The panels of one operand as they must come: in order, without gaps. Not thread-safe.
class PanelOrder {
 public:
  // `name`: "a" or "b".
  PanelOrder(std::string name, size_t operand_bytes)
      : name_(std::move(name)), operand_bytes_(operand_bytes) {}

  // Naming the field, its value and the limit: INVALID_ARGUMENT when the panel is empty, not at the
  // next byte or ends beyond the operand; RESOURCE_EXHAUSTED above kMaxPanelBytes.
  absl::Status Take(const StreamPanel& panel);
  size_t bytes() const { return operand_bytes_; }  // of the operand
  bool complete() const { return taken_ == operand_bytes_; }
  // "12 of 34 bytes of a".
  std::string Describe() const;

 private:
  std::string name_;
  size_t operand_bytes_;
  size_t taken_ = 0;
};

// The bytes of a panel, where they lie in the message.
std::vector<HostBytes> BytesOf(absl::Span<const ByteSpan> pieces, const StreamPanel& panel);
// DATA_LOSS when a CRC came and is another.
absl::Status CheckCrc(const std::string& name, const StreamPanel& panel,
                      absl::Span<const HostBytes> data);

// Everything of a MatmulStreamResponse with a panel of D up to its data's bytes, which follow it.
struct ResultPanel {
  size_t offset = 0;
  uint32_t crc32c = 0;
  size_t bytes = 0;
};
std::string EncodeResultPanel(const ResultPanel& panel);

// What the panels of a stream took, added up.
struct StreamTimings {
  Nanos receive{0};
  Nanos decode{0};
  JobTimings job;
  std::string kernel;
  int batched_with = 0;  // of the panel with the most
};
// All of the first and of the last message.
std::string EncodeFirstHeader(const MutableMatrixView& d);
std::string EncodeLastHeader(const GemmShape& shape, DType output, const StreamTimings& timings,
                             const std::string& handle);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_STREAM_WIRE_H_
