// One MatmulStream call: operands in panels, D out in panels while they come.
//
//   header ─► bytes of B ─► rows of A ─► panel's lease ─► engine ─► D's bytes, in order
//
// Threads: the handlers of MatrixCall read, copy and submit, one at a time; they alone touch what
// has no other comment. A second strand makes messages of finished panels, so that D leaves while
// rows of A are copied. gRPC writes those while it reads the next request message.
//
// What a stream may hold is bounded: a share of StreamBudget pays for plan_.at_once panels' leases,
// from when the first byte of a panel is received until gRPC has written the last one of D; beside
// them at most two request messages. While no panel is free nothing more is read: flow control then
// stops the client.
#ifndef TCGEMM_SERVER_RPC_STREAM_CALL_H_
#define TCGEMM_SERVER_RPC_STREAM_CALL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/rpc/matrix_call.h"
#include "server/rpc/request_residents.h"
#include "server/rpc/stream_budget.h"
#include "server/rpc/stream_plan.h"
#include "server/rpc/stream_results.h"
#include "server/rpc/stream_wire.h"

namespace tcgemm {

inline constexpr char kStreamMethod[] = "MatmulStream";

class StreamCall final : public MatrixCall {
 public:
  StreamCall(CallContext* context, grpc::CallbackServerContext* grpc_context);
  ~StreamCall() override;

 private:
  // What the next message must hold.
  enum class Stage { kHeader, kB, kA, kEnd };

  // A panel message, while its bytes are copied.
  struct Chunk {
    std::vector<grpc::Slice> slices;
    std::vector<HostBytes> data;  // in them
    StreamPanel panel;
    size_t piece = 0;  // the current one of `data`, and the position in it
    size_t at = 0;
    size_t left = 0;
    bool checked = false;    // its CRC
    bool next_read = false;  // the next message was asked for
  };
  // The panel of rows that is being received, or about to be submitted.
  struct OpenPanel {
    PanelLayout layout;
    Lease lease;
    size_t bytes = 0;  // dense, of A
    size_t filled = 0;
  };

  void OnMessage(const grpc::ByteBuffer& message) override;
  void OnRequestsEnd() override;
  void OnEnd() override;

  absl::Status Take(const grpc::ByteBuffer& message);
  absl::Status Open(const RequestFields& header);
  absl::Status MakeResidents(const RequestFields& header);
  absl::StatusOr<ResidentRef> MakeTemporary(const std::string& name, const MatrixView& view);
  absl::Status TakePanel(PanelOrder& order, const ResidentRef& resident, const StreamPanel& panel,
                         std::vector<ByteSpan> pieces);
  absl::Status CheckTurn(const StreamPart& part) const;
  // An operand's last byte, or none of it, was to come.
  absl::Status EnterNextStage();

  absl::Status FillResident(const ResidentRef& resident);
  absl::Status CheckChunk();
  // As far as there are panels for it; goes on when one is free.
  absl::Status FillPanels();
  void CopyToPanel();
  // Panels of a resident A.
  absl::Status SubmitReadyPanels();
  // False: none is free now; Resume follows.
  bool TryOpenPanel();
  // False: there is no memory now; Resume follows.
  bool TryLease(size_t bytes);
  absl::Status SubmitPanel();
  // A panel or its memory is free again.
  void Resume();

  // On the second strand.
  void Emit(int64_t index, const PanelLayout& layout, JobOutcome outcome);
  void RespondIfDone();
  void Fail(const absl::Status& status);
  absl::Status Refuse(absl::Status status, RejectReason reason, Retry retry);
  // An operand must come at 4 MiB per --receive-timeout or faster.
  void LimitPace(size_t bytes);
  const char* operand_name() const { return stage_ == Stage::kB ? "b" : "a"; }

  Stage stage_ = Stage::kHeader;
  bool over_ = false;  // the call has ended: nothing is worth doing
  RequestResidents residents_;
  StreamPlan plan_;
  PeerSlots::Slot slot_;
  StreamBudget::Share share_;
  JobResidents job_residents_;
  std::optional<PanelOrder> a_;
  std::optional<PanelOrder> b_;
  Chunk chunk_;
  std::optional<OpenPanel> open_;
  Lease lease_;  // came for the next panel
  bool awaits_lease_ = false;
  BufferPool::WaitId lease_wait_ = 0;
  int held_ = 0;  // panels whose leases are not back
  int64_t next_panel_ = 0;
  std::deque<JobId> jobs_;  // the last ones: all that may still wait
  bool all_left_ = false;   // every panel of D is on its way out
  bool requests_ended_ = false;
  TimePoint received_at_;
  Nanos decode_{0};
  std::optional<absl::Status> refusal_;  // of Open, with its reason
  RejectReason refusal_reason_ = RejectReason::kMemory;
  Retry refusal_retry_ = Retry::kNo;

  Strand results_strand_;
  std::unique_ptr<StreamResults> results_;  // the second strand's, from the first panel to the last
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_STREAM_CALL_H_
