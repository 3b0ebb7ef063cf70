// One matrix to or from the server, however often the connection breaks within the time there is.
#ifndef TCGEMM_CLIENT_MATRIX_TRANSFER_H_
#define TCGEMM_CLIENT_MATRIX_TRANSFER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/lanes.h"
#include "client/matrix_client.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

// A matrix on its way up, from attempt to attempt. Not thread-safe.
//
// A name is taken together with a random key (UploadMatrixRequest.Header.creation_key), so that an
// attempt whose answer was lost is told apart from somebody else's matrix. A matrix without a name
// whose answer was lost has left the server by itself: the next attempt makes another one.
class Upload {
 public:
  // A new matrix. `matrix` must outlive this.
  Upload(const MatrixView& matrix, const UploadOptions& options);
  // One that is there.
  Upload(const MatrixView& matrix, const std::string& handle);

  // Makes the matrix or, when an attempt may have made it, asks what of it is there; sends what
  // `queue` (may be null) gives out besides. filling() is right after a success.
  Attempt Open(const StreamPath& path, RangeQueue* queue = nullptr);

  // What a failed attempt, of Open or to fill it, means for the next one.
  Attempt Judge(Attempt attempt);

  Filling& filling() { return filling_; }
  // The server was asked to make it.
  bool may_exist() const { return may_exist_; }
  // It was deleted: the next Open makes it again.
  void Forget();
  // What to delete when it is of no use any more; empty: nothing is known.
  const std::string& handle() const {
    return options_.name.empty() ? filling_.handle : options_.name;
  }

 private:
  v1::UploadMatrixRequest::Header Header() const;

  const UploadOptions options_;
  const bool is_new_;
  const std::string creation_key_;
  bool may_exist_ = false;
  Filling filling_;
};

// Deletes, within a moment, whether it works or not.
void DeleteQuietly(const std::shared_ptr<grpc::Channel>& channel, const std::string& handle);

// As MatrixClient's. `lanes`: LanesFor's `asked`.
absl::StatusOr<std::string> UploadMatrix(Lanes& connections, int lanes, const MatrixView& matrix,
                                         const UploadOptions& upload, const CallOptions& options);
absl::Status ResumeMatrix(Lanes& connections, int lanes, const std::string& handle,
                          const MatrixView& matrix, const CallOptions& options);
absl::Status DownloadMatrix(Lanes& connections, int lanes, const std::string& handle,
                            Matrix& matrix, const CallOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_MATRIX_TRANSFER_H_
