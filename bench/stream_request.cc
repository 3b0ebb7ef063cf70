#include "bench/stream_request.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>

#include "base/crc32c.h"
#include "bench/random_request.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kPath[] = "/tcgemm.v1.MatmulService/MatmulStream";

grpc::ByteBuffer Serialize(const v1::MatmulStreamRequest& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

void AddPanels(const std::string& matrix, size_t panel_bytes, bool is_a,
               std::vector<grpc::ByteBuffer>& messages) {
  for (size_t at = 0; at < matrix.size(); at += panel_bytes) {
    v1::MatmulStreamRequest message;
    v1::Panel& panel = is_a ? *message.mutable_a() : *message.mutable_b();
    panel.set_offset(static_cast<int64_t>(at));
    panel.set_data(matrix.substr(at, panel_bytes));
    panel.set_crc32c(Crc32c(panel.data().data(), panel.data().size()));
    messages.push_back(Serialize(message));
  }
}

// The operations of one call on its queue, by tag.
class Call {
 public:
  Call(const std::shared_ptr<grpc::Channel>& channel, const std::vector<grpc::ByteBuffer>& messages)
      : messages_(messages), stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub_.PrepareCall(&context_, kPath, &queue_);
    stream_->StartCall(Tag(kStart));
  }

  StreamAnswer Run() {
    void* tag;
    bool ok;
    while (!finished_ && queue_.Next(&tag, &ok)) Handle(static_cast<int>(intptr_t(tag)), ok);
    answer_.last = previous_;
    return std::move(answer_);
  }
  size_t received_bytes() const { return received_; }

 private:
  enum : int { kStart, kRead, kWrite, kFinish };
  static void* Tag(int operation) { return reinterpret_cast<void*>(intptr_t{operation}); }

  void Handle(int operation, bool ok) {
    if (operation == kFinish) finished_ = true;
    if (operation == kRead) OnRead(ok);
    if (operation == kStart && ok) stream_->Read(&message_, Tag(kRead));
    if (operation == kStart && !ok) stream_->Finish(&answer_.status, Tag(kFinish));
    if ((operation == kStart || operation == kWrite) && ok) WriteNext();
  }

  void OnRead(bool ok) {
    if (!ok) {
      stream_->Finish(&answer_.status, Tag(kFinish));
      return;
    }
    received_ += message_.Length();
    if (++reads_ == 2) {
      answer_.first_byte_seconds =
          std::chrono::duration<double>(SteadyClock::now() - start_).count();
    }
    previous_.Swap(&message_);
    message_.Clear();
    stream_->Read(&message_, Tag(kRead));
  }

  void WriteNext() {
    if (next_ == messages_.size()) return;
    const grpc::ByteBuffer& message = messages_[next_++];
    if (next_ < messages_.size()) {
      stream_->Write(message, Tag(kWrite));
    } else {
      stream_->WriteLast(message, grpc::WriteOptions(), Tag(kWrite));
    }
  }

  const SteadyClock::time_point start_ = SteadyClock::now();
  const std::vector<grpc::ByteBuffer>& messages_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer previous_;
  StreamAnswer answer_;
  size_t next_ = 0;
  size_t received_ = 0;
  int reads_ = 0;
  bool finished_ = false;
};

}  // namespace

std::vector<grpc::ByteBuffer> MakeRandomStream(int64_t size, size_t panel_bytes) {
  const grpc::ByteBuffer unary = MakeRandomRequest(size);
  grpc::Slice slice;
  v1::MatmulRequest request;
  if (unary.DumpToSingleSlice(&slice).ok()) {
    request.ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
  }
  std::vector<grpc::ByteBuffer> messages(1);
  const std::string a = std::move(*request.mutable_a()->mutable_inline_());
  const std::string b = std::move(*request.mutable_b()->mutable_inline_());
  request.mutable_a()->clear_inline_();
  request.mutable_b()->clear_inline_();
  v1::MatmulStreamRequest header;
  *header.mutable_header() = request;
  messages[0] = Serialize(header);
  AddPanels(b, panel_bytes, /*is_a=*/false, messages);
  AddPanels(a, panel_bytes, /*is_a=*/true, messages);
  return messages;
}

StreamAnswer CallStream(const std::shared_ptr<grpc::Channel>& channel,
                        const std::vector<grpc::ByteBuffer>& messages, size_t result_bytes) {
  Call call(channel, messages);
  StreamAnswer answer = call.Run();
  if (answer.status.ok() && call.received_bytes() < result_bytes) {
    answer.status = grpc::Status(grpc::StatusCode::DATA_LOSS, "not every byte of D came");
  }
  return answer;
}

}  // namespace tcgemm
