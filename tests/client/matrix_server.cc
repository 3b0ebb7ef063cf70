#include "tests/client/matrix_server.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/crc32c.h"
#include "base/mutex.h"
#include "client/range.h"
#include "tcgemm/v1/matmul.grpc.pb.h"
#include "tests/client/naive_product.h"

namespace tcgemm::client {
namespace {

using grpc::Status;
using grpc::StatusCode;

struct Stored {
  int64_t rows = 0;
  int64_t cols = 0;
  v1::DType dtype = v1::BF16;
  std::string bytes;
  std::vector<Range> present;
  std::string key;
  uint64_t generation = 0;

  bool complete() const { return MissingRanges(present, bytes.size()).empty(); }
  // What is missing of what is missing is present.
  void Add(const Range& range) {
    present.push_back(range);
    present = MissingRanges(MissingRanges(present, bytes.size()), bytes.size());
  }
};

}  // namespace

struct MatrixServer::State final : v1::MatmulService::Service {
  explicit State(const Options& the_options) : options(the_options) {}

  // Before, after, or not at all.
  template <typename Call>
  Status Run(MatrixMethod method, grpc::ServerContext* context, Call call) {
    const std::optional<MatrixFailure> failure = failures.Begin(method, context);
    if (failure.has_value() && !failure->after) return FailedStatus(*failure, context);
    const Status status = call();
    return failure.has_value() ? FailedStatus(*failure, context) : status;
  }

  // ---- The calls ----

  Status Open(const v1::UploadMatrixRequest::Header& header, std::string* handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!header.handle().empty()) {
      const auto it = matrices.find(header.handle());
      if (it == matrices.end() || (!options.old && header.generation() != 0 &&
                                   header.generation() != it->second.generation)) {
        return Status(StatusCode::NOT_FOUND, "no such matrix");
      }
      *handle = header.handle();
      return Status::OK;
    }
    *handle = header.name().empty() ? std::string(30, 'f') + std::to_string(10 + next_random++ % 90)
                                    : header.name();
    if (const auto it = matrices.find(*handle); it != matrices.end()) {
      const bool same =
          !options.old && !header.creation_key().empty() && header.creation_key() == it->second.key;
      return same ? Status::OK : Status(StatusCode::ALREADY_EXISTS, "the name is taken");
    }
    const Status made =
        Make(*handle, header.rows(), header.cols(), v1::BF16, header.creation_key());
    if (made.ok()) ttls.push_back(header.ttl_seconds());
    return made;
  }

  Status Make(const std::string& handle, int64_t rows, int64_t cols, v1::DType dtype,
              const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const size_t bytes = static_cast<size_t>(rows * cols) * (dtype == v1::FP32 ? 4 : 2);
    size_t used = 0;
    for (const auto& [name, stored] : matrices) used += stored.bytes.size();
    if (used + bytes > options.budget_bytes) {
      return Status(StatusCode::RESOURCE_EXHAUSTED, "no room (--resident-bytes)");
    }
    matrices[handle] = {.rows = rows,
                        .cols = cols,
                        .dtype = dtype,
                        .bytes = std::string(bytes, '\0'),
                        .key = key,
                        .generation = next_generation++};
    return Status::OK;
  }

  Status TakeRange(const std::string& handle, const v1::UploadMatrixRequest::Range& range)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (failures.peers() < awaited_peers) arrived.Wait(&mutex);
    const std::string& data = range.data();
    received += data.size();
    const auto it = matrices.find(handle);
    if (it == matrices.end()) return Status(StatusCode::NOT_FOUND, "the matrix left");
    const auto at = static_cast<size_t>(range.offset());
    if (at + data.size() > it->second.bytes.size() || data.empty() ||
        Crc32c(data.data(), data.size()) != range.crc32c()) {
      return Status(StatusCode::DATA_LOSS, "a wrong range");
    }
    // What is there stays.
    for (const Range& missing : MissingRanges(it->second.present, it->second.bytes.size())) {
      const size_t begin = std::max(at, missing.begin);
      const size_t end = std::min(at + data.size(), missing.end);
      if (begin < end) it->second.bytes.replace(begin, end - begin, data, begin - at, end - begin);
    }
    it->second.Add({at, at + data.size()});
    if (received >= restart_at) {
      restart_at = SIZE_MAX;
      ++starts;
      matrices.clear();
    }
    return Status::OK;
  }

  Status UploadMatrix(grpc::ServerContext* context,
                      grpc::ServerReader<v1::UploadMatrixRequest>* reader,
                      v1::UploadMatrixResponse* response) override {
    const std::optional<MatrixFailure> failure = failures.Begin(MatrixMethod::kUpload, context);
    arrived.NotifyAll();
    if (failure.has_value() && !failure->after && failure->bytes == 0)
      return FailedStatus(*failure, context);
    std::string handle;
    size_t passed = 0;
    int started;
    {
      MutexLock lock(&mutex);
      started = starts;
    }
    for (v1::UploadMatrixRequest message; reader->Read(&message);) {
      passed += message.range().data().size();
      if (failure.has_value() && failure->bytes > 0 && passed >= failure->bytes) {
        return FailedStatus(*failure, context);
      }
      MutexLock lock(&mutex);
      if (starts != started) break;
      const Status status = message.has_header() ? Open(message.header(), &handle)
                                                 : TakeRange(handle, message.range());
      if (!status.ok()) return status;
    }
    MutexLock lock(&mutex);
    if (starts != started) return Status(StatusCode::UNAVAILABLE, "the server was started anew");
    if (failure.has_value()) return FailedStatus(*failure, context);
    if (matrices.count(handle) == 0) return Status(StatusCode::NOT_FOUND, "the matrix left");
    Describe(handle, response);
    return Status::OK;
  }

  void Describe(const std::string& handle, v1::UploadMatrixResponse* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const Stored& stored = matrices[handle];
    response->set_handle(handle);
    response->set_complete(stored.complete());
    if (!options.old) response->set_generation(stored.generation);
    for (const Range& present : stored.present) {
      v1::ByteRange* const range = response->add_present();
      range->set_offset(static_cast<int64_t>(present.begin));
      range->set_length(static_cast<int64_t>(present.size()));
    }
  }

  v1::MatrixInfo InfoOf(const std::string& handle, const Stored& stored) {
    v1::MatrixInfo info;
    info.set_handle(handle);
    info.set_rows(stored.rows);
    info.set_cols(stored.cols);
    info.set_dtype(stored.dtype);
    info.set_bytes(static_cast<int64_t>(stored.bytes.size()));
    info.set_complete(stored.complete());
    if (!options.old) info.set_generation(stored.generation);
    return info;
  }

  Status DownloadMatrix(grpc::ServerContext* context, const v1::DownloadMatrixRequest* request,
                        grpc::ServerWriter<v1::DownloadMatrixResponse>* writer) override {
    const std::optional<MatrixFailure> failure = failures.Begin(MatrixMethod::kDownload, context);
    if (failure.has_value() && !failure->after && failure->bytes == 0)
      return FailedStatus(*failure, context);
    Stored stored;
    {
      MutexLock lock(&mutex);
      const auto it = matrices.find(request->handle());
      if (it == matrices.end()) return Status(StatusCode::NOT_FOUND, "no such matrix");
      stored = it->second;
    }
    size_t at = static_cast<size_t>(request->range().offset());
    const size_t begin = at;
    const size_t end = request->range().length() == 0
                           ? stored.bytes.size()
                           : at + static_cast<size_t>(request->range().length());
    if (end > stored.bytes.size() || at >= end) {
      return Status(StatusCode::INVALID_ARGUMENT, "the range");
    }
    constexpr size_t kChunk = 64 << 10;
    while (at < end) {
      v1::DownloadMatrixResponse chunk;
      if (at == begin) *chunk.mutable_info() = InfoOf(request->handle(), stored);
      chunk.set_offset(static_cast<int64_t>(at));
      chunk.set_data(stored.bytes.substr(at, std::min(kChunk, end - at)));
      chunk.set_crc32c(Crc32c(chunk.data().data(), chunk.data().size()));
      at += chunk.data().size();
      writer->Write(chunk);
      NoteDownloaded(chunk.data().size());
      if (failure.has_value() && failure->bytes > 0 && at - begin >= failure->bytes) {
        return FailedStatus(*failure, context);
      }
    }
    return failure.has_value() ? FailedStatus(*failure, context) : Status::OK;
  }

  void NoteDownloaded(size_t bytes) {
    MutexLock lock(&mutex);
    if (!replacement.has_value()) return;
    replace_after -= std::min(replace_after, bytes);
    if (replace_after > 0) return;
    matrices[replaced].bytes = *std::exchange(replacement, std::nullopt);
    matrices[replaced].generation = next_generation++;
  }

  Status ListMatrices(grpc::ServerContext* context, const v1::ListMatricesRequest* request,
                      v1::ListMatricesResponse* response) override {
    return Run(MatrixMethod::kList, context, [&] {
      MutexLock lock(&mutex);
      const size_t limit =
          options.old || request->page_size() == 0
              ? SIZE_MAX
              : std::min(options.page_limit, static_cast<size_t>(request->page_size()));
      for (const auto& [handle, stored] : matrices) {
        if (!options.old && handle <= request->page_token()) continue;
        if (static_cast<size_t>(response->matrices_size()) == limit) {
          response->set_next_page_token(response->matrices().rbegin()->handle());
          break;
        }
        *response->add_matrices() = InfoOf(handle, stored);
      }
      return Status::OK;
    });
  }

  Status DeleteMatrix(grpc::ServerContext* context, const v1::DeleteMatrixRequest* request,
                      v1::DeleteMatrixResponse*) override {
    return Run(MatrixMethod::kDelete, context, [&] {
      MutexLock lock(&mutex);
      return matrices.erase(request->handle()) > 0
                 ? Status::OK
                 : Status(StatusCode::NOT_FOUND, "no such matrix");
    });
  }

  MatrixView ViewOf(const v1::Operand& operand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const bool stored = !operand.handle().empty();
    const auto it = matrices.find(operand.handle());
    return {.data = stored ? it->second.bytes.data() : operand.inline_().data(),
            .rows = stored ? it->second.rows : operand.rows(),
            .cols = stored ? it->second.cols : operand.cols(),
            .ld = stored              ? it->second.cols
                  : operand.ld() == 0 ? operand.cols()
                                      : operand.ld(),
            .transposed = operand.transposed()};
  }

  Status Matmul(grpc::ServerContext* context, const v1::MatmulRequest* request,
                v1::MatmulResponse* response) override {
    return Run(MatrixMethod::kMatmul, context, [&] {
      MutexLock lock(&mutex);
      for (const v1::Operand* operand : {&request->a(), &request->b()}) {
        const auto it = matrices.find(operand->handle());
        if (operand->handle().empty()) continue;
        if (it == matrices.end()) return Status(StatusCode::NOT_FOUND, "no such operand");
        if (!it->second.complete()) return Status(StatusCode::FAILED_PRECONDITION, "not complete");
      }
      const MatrixView a = ViewOf(request->a());
      const MatrixView b = ViewOf(request->b());
      const std::string d = NaiveProduct(a, b, request->output_dtype() == v1::FP32);
      response->set_rows(a.op_rows());
      response->set_cols(b.op_cols());
      response->set_dtype(request->output_dtype());
      response->set_kernel("matrix server");
      if (!request->has_output()) {
        response->set_d(d);
        return Status::OK;
      }
      const std::string handle =
          request->output().handle().empty() ? std::string(32, 'd') : request->output().handle();
      if (matrices.count(handle) > 0) return Status(StatusCode::ALREADY_EXISTS, "taken");
      const Status made = Make(handle, a.op_rows(), b.op_cols(), request->output_dtype(), "");
      if (!made.ok()) return made;
      ttls.push_back(request->output().ttl_seconds());
      matrices[handle].bytes = d;
      matrices[handle].present = {{0, d.size()}};
      response->set_handle(handle);
      return Status::OK;
    });
  }

  const Options options;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  ScriptedFailures failures;
  Mutex mutex;
  std::map<std::string, Stored> matrices ABSL_GUARDED_BY(mutex);
  std::vector<int64_t> ttls ABSL_GUARDED_BY(mutex);
  CondVar arrived;
  int awaited_peers ABSL_GUARDED_BY(mutex) = 0;
  size_t received ABSL_GUARDED_BY(mutex) = 0;
  size_t restart_at ABSL_GUARDED_BY(mutex) = SIZE_MAX;
  int starts ABSL_GUARDED_BY(mutex) = 0;
  int next_random ABSL_GUARDED_BY(mutex) = 0;
  uint64_t next_generation ABSL_GUARDED_BY(mutex) = 100;
  std::string replaced ABSL_GUARDED_BY(mutex);
  std::optional<std::string> replacement ABSL_GUARDED_BY(mutex);
  size_t replace_after ABSL_GUARDED_BY(mutex) = 0;
};

MatrixServer::MatrixServer(const Options& options) : state_(std::make_unique<State>(options)) {
  // For good: in a process with both ends of a connection, gRPC's last shutdown may wait 10 s for a
  // poller of its own (src/core/lib/iomgr/tcp_posix.cc, run_poller).
  static const bool initialized = (grpc_init(), true);
  static_cast<void>(initialized);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &state_->port);
  builder.RegisterService(state_.get());
  state_->server = builder.BuildAndStart();
}

MatrixServer::~MatrixServer() { state_->server->Shutdown(std::chrono::system_clock::now()); }

std::string MatrixServer::address() const { return "127.0.0.1:" + std::to_string(state_->port); }

void MatrixServer::Fail(const MatrixFailure& failure) { state_->failures.Add(failure); }

int MatrixServer::calls(MatrixMethod method) const { return state_->failures.calls(method); }
int MatrixServer::peers() const { return state_->failures.peers(); }

size_t MatrixServer::received_bytes() const {
  MutexLock lock(&state_->mutex);
  return state_->received;
}

void MatrixServer::AwaitPeers(int peers) {
  MutexLock lock(&state_->mutex);
  state_->awaited_peers = peers;
}

void MatrixServer::RestartAfter(size_t bytes) {
  MutexLock lock(&state_->mutex);
  state_->restart_at = state_->received + bytes;
}

std::vector<std::string> MatrixServer::handles() const {
  MutexLock lock(&state_->mutex);
  std::vector<std::string> names;
  for (const auto& [name, stored] : state_->matrices) names.push_back(name);
  return names;
}

std::vector<int64_t> MatrixServer::times_to_live() const {
  MutexLock lock(&state_->mutex);
  return state_->ttls;
}

void MatrixServer::Put(const std::string& handle, int64_t rows, int64_t cols,
                       const std::string& bytes) {
  MutexLock lock(&state_->mutex);
  state_->matrices[handle] = {.rows = rows,
                              .cols = cols,
                              .bytes = bytes,
                              .present = {{0, bytes.size()}},
                              .generation = state_->next_generation++};
}

void MatrixServer::Remove(const std::string& handle) {
  MutexLock lock(&state_->mutex);
  state_->matrices.erase(handle);
}

void MatrixServer::ReplaceDuringDownload(const std::string& handle, const std::string& bytes,
                                         size_t after) {
  MutexLock lock(&state_->mutex);
  state_->replaced = handle;
  state_->replacement = bytes;
  state_->replace_after = after;
}

std::string MatrixServer::BytesOf(const std::string& handle) const {
  MutexLock lock(&state_->mutex);
  const auto it = state_->matrices.find(handle);
  return it != state_->matrices.end() && it->second.complete() ? it->second.bytes : "";
}

}  // namespace tcgemm::client
