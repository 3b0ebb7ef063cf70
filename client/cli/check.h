// Is D = act(alpha·op(A)·op(B) + beta·C + bias)? The proof that the client gives for a result.
#ifndef TCGEMM_CLIENT_CLI_CHECK_H_
#define TCGEMM_CLIENT_CLI_CHECK_H_

#include <string>

#include "absl/status/statusor.h"
#include "matrix/epilogue.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

struct Proof {
  bool ok = false;
  double max_error_ratio = 0;  // to the bound of matrix/reference.h or matrix/freivalds.h
  // For people: how it was checked, and the worst element or row.
  std::string text;
};

// Every element against the float64 reference up to about 2^31 products; beyond that Freivalds'
// method over all of D and the reference for some whole rows; with an epilogue, through which
// Freivalds' method does not see, as many rows as 2^31 products take, at random. INVALID_ARGUMENT
// when shapes or types do not fit.
absl::StatusOr<Proof> Prove(const MatrixView& a, const MatrixView& b, const MatrixView& d,
                            const Epilogue& epilogue = {});

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_CHECK_H_
