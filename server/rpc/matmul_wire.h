// MatmulRequest and MatmulResponse on the wire, without a protobuf message in between: the
// operands' bytes are found where they lie and copied once.
#ifndef TCGEMM_SERVER_RPC_MATMUL_WIRE_H_
#define TCGEMM_SERVER_RPC_MATMUL_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/gemm.h"
#include "server/engine/job.h"
#include "server/rpc/epilogue_fields.h"
#include "server/rpc/wire_reader.h"

namespace tcgemm {

// Of rows, columns and ld, as the proto says.
inline constexpr int64_t kMaxDimension = std::numeric_limits<int32_t>::max();
// Of a resident matrix that nobody uses.
inline constexpr int64_t kMaxTtlSeconds = std::numeric_limits<int32_t>::max();

// A tcgemm.v1.RegionRef as it came.
struct RegionFields {
  std::string name;  // cut off where it is longer than any
  int64_t offset = 0;
  // The region, once RegionOperands has found it.
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// A tcgemm.v1.Operand as it came: nothing checked yet.
struct OperandFields {
  // kStreamed is never parsed: MatmulStream says so of an operand whose bytes come later.
  enum class Source { kNone, kInline, kHandle, kRegion, kStreamed };

  bool present = false;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;
  int32_t dtype = 0;
  bool transposed = false;
  Source source = Source::kNone;
  // Of the inline bytes: where they start in the message, and how many they are.
  size_t inline_position = 0;
  size_t inline_bytes = 0;
  // Cut off where it is longer than any handle.
  std::string handle;
  // Of a handle, once RequestResidents has found it; its data is null before.
  MatrixView resident;
  RegionFields region;
};

// A tcgemm.v1.OutputTarget as it came.
struct OutputFields {
  enum class Target { kNone, kHandle, kRegion };

  bool present = false;
  Target target = Target::kNone;
  std::string handle;  // as an operand's
  RegionFields region;
  int64_t ttl_seconds = 0;
};

// A tcgemm.v1.MatmulRequest as it came.
struct RequestFields {
  OperandFields a;
  OperandFields b;
  int32_t output_dtype = 0;
  OperandFields c;
  OperandFields bias;
  EpilogueFields epilogue;
  int32_t verify = 0;
  int32_t priority = 0;
  int32_t reduction = 0;
  OutputFields output;
};

// Accepts what protobuf accepts: fields in any order, the last scalar wins, submessages that come
// twice merge, unknown fields are skipped. INVALID_ARGUMENT for bytes that are no such message.
absl::StatusOr<RequestFields> ParseMatmulRequest(absl::Span<const ByteSpan> pieces);

// A request that can be served: what to copy where, in one lease.
struct RequestLayout {
  // Resident ones, and those in regions, as they lie. Others with the pitch in the lease as ld, and
  // data null.
  MatrixView a;
  MatrixView b;
  // Dense in the lease or a region; of a resident one, `data` and `ld` are RequestResidents'.
  MutableMatrixView d;
  EpilogueLayout epilogue;
  bool fastest = false;  // the sums may be formed in another order
  bool d_is_resident = false;
  bool d_in_region = false;
  // Offsets in the lease, multiples of 256; matrices that lie elsewhere take nothing of it.
  size_t a_offset = 0;
  size_t b_offset = 0;
  size_t d_offset = 0;
  size_t lease_bytes = 0;  // 0 when every matrix lies elsewhere
  // Elements from row to row in the message.
  int64_t a_source_ld = 0;
  int64_t b_source_ld = 0;
  size_t a_position = 0;
  size_t b_position = 0;

  size_t operand_bytes() const { return d_offset; }
  // It travels with the response.
  bool d_in_lease() const { return !d_is_resident && !d_in_region; }
  // The problem with its pointers into `lease`, except for matrices that lie elsewhere.
  GemmProblem ProblemIn(std::byte* lease) const;
};

// Checks every field and lays the lease out, with rows padded to `pitch_alignment` elements.
// INVALID_ARGUMENT or UNIMPLEMENTED, naming the field, its value and the limit; RESOURCE_EXHAUSTED
// when A, B, C, the bias and D together need more than `max_lease_bytes`.
absl::StatusOr<RequestLayout> ValidateRequest(const RequestFields& fields, int64_t pitch_alignment,
                                              size_t max_lease_bytes);

// What one message may hold of D: gRPC's lengths are an int in many places.
inline constexpr size_t kMaxResponseBytes = (size_t{1} << 31) - (size_t{64} << 10);
// RESOURCE_EXHAUSTED when D goes into the response and is larger.
absl::Status CheckResponseSize(const RequestLayout& layout);

// Rows [first_row, last_row) of one operand, from the message into the lease.
struct OperandCopy {
  size_t position = 0;  // of row 0 in the message
  std::byte* to = nullptr;
  int64_t first_row = 0;
  int64_t last_row = 0;
  size_t row_bytes = 0;
  size_t source_pitch = 0;  // bytes
  size_t pitch = 0;         // bytes
};

// The copies that fill A, B, C and the bias, each cut by rows into at most `parts` of about equal
// size.
std::vector<OperandCopy> PlanCopies(const RequestLayout& layout, std::byte* lease, int parts);
void RunCopy(absl::Span<const ByteSpan> pieces, const OperandCopy& copy);

// Everything of a MatmulResponse up to D's bytes, which follow it; or all of it, with the handle of
// a D that stays on the server, when D is not in the lease.
std::string EncodeResponseHeader(const RequestLayout& layout, const JobOutcome& outcome,
                                 Nanos receive, Nanos decode, const std::string& handle = "");

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_MATMUL_WIRE_H_
