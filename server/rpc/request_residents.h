// The resident matrices of one Matmul request: looked up, checked and, for D, made.
#ifndef TCGEMM_SERVER_RPC_REQUEST_RESIDENTS_H_
#define TCGEMM_SERVER_RPC_REQUEST_RESIDENTS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/engine/job.h"
#include "server/engine/resident_store.h"
#include "server/rpc/matmul_wire.h"

namespace tcgemm {

// Not thread-safe: the stages of a call use it one after the other. A D that was made leaves the
// store with it, unless Release was called and, when its handle is random, OnAnswered too: a handle
// that no client was told is nobody's.
class RequestResidents {
 public:
  // `store` must outlive it.
  RequestResidents(ResidentStore* store, Caller caller)
      : store_(store), caller_(std::move(caller)) {}
  ~RequestResidents() { DropResult(); }
  RequestResidents(const RequestResidents&) = delete;
  RequestResidents& operator=(const RequestResidents&) = delete;

  // Finds the operands that have a handle and fills in what the request left out. NOT_FOUND;
  // FAILED_PRECONDITION when not every byte is there; INVALID_ARGUMENT when rows, cols, dtype or ld
  // are given and not the matrix's; each names the field.
  absl::Status Find(RequestFields& fields);
  // Makes D where it is to stay. The errors of ResidentStore::Create, naming the field.
  absl::Status MakeResult(const RequestFields& fields, RequestLayout& layout);

  const JobResidents& residents() const { return residents_; }
  // The product has written D. Its handle; empty when D does not stay.
  std::string CompleteResult();
  // The call succeeds: D stays, and nothing is in use any more. Before the client hears of it, who
  // may delete what it used and want the room.
  void Release();
  // The client has heard of it.
  void OnAnswered() { unheard_.reset(); }
  // The call fails: D's name is free again.
  void DropResult();

 private:
  absl::Status FindOperand(const std::string& name, OperandFields& operand, ResidentRef& found);

  ResidentStore* const store_;
  const Caller caller_;
  JobResidents residents_;
  std::weak_ptr<ResidentMatrix> unheard_;  // D, whose random handle no client knows yet
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_REQUEST_RESIDENTS_H_
