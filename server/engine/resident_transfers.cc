#include "server/engine/resident_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/slab.h"

namespace tcgemm {
namespace {

void CopyOnHost(const Copy2d& copy) {
  for (int64_t row = 0; row < copy.rows; ++row) {
    std::memcpy(static_cast<std::byte*>(copy.destination) + row * copy.destination_pitch,
                static_cast<const std::byte*>(copy.source) + row * copy.source_pitch,
                copy.row_bytes);
  }
}

// Calls `use(offset in range, bytes)` for each part of `pieces`, which start at `start`, that lies
// in `range`.
template <typename Use>
absl::Status ForEachPart(absl::Span<const HostBytes> pieces, size_t start, const ByteRange& range,
                         Use use) {
  for (const HostBytes& piece : pieces) {
    const size_t begin = std::max(start, range.begin);
    const size_t end = std::min(start + piece.size(), range.end);
    if (begin < end) {
      TCGEMM_RETURN_IF_ERROR(use(begin, piece.subspan(begin - start, end - begin)));
    }
    start += piece.size();
  }
  return absl::OkStatus();
}

}  // namespace

struct ResidentTransfers::Lane {
  // The order matters: events and streams go before memory.
  MemoryBlock staging;  // empty with unified memory
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> done;
  ResidentRef kept;  // of a copy that did not end
};

absl::StatusOr<std::unique_ptr<ResidentTransfers>> ResidentTransfers::Create(Device* device,
                                                                             EngineEvents* events,
                                                                             int lanes) {
  std::unique_ptr<ResidentTransfers> transfers(new ResidentTransfers(device, events));
  for (int i = 0; i < lanes; ++i) {
    auto lane = std::make_unique<Lane>();
    if (!device->info().unified_memory) {
      TCGEMM_ASSIGN_OR_RETURN(lane->staging, device->AllocatePinned(kPieceBytes));
      TCGEMM_ASSIGN_OR_RETURN(lane->stream, device->CreateStream());
      TCGEMM_ASSIGN_OR_RETURN(lane->done, device->CreateEvent());
    }
    transfers->lanes_.push_back(std::move(lane));
  }
  MutexLock lock(&transfers->mutex_);
  for (const auto& lane : transfers->lanes_) transfers->free_.push_back(lane.get());
  return transfers;
}

ResidentTransfers::ResidentTransfers(Device* device, EngineEvents* events)
    : device_(device), events_(events) {}

ResidentTransfers::~ResidentTransfers() = default;

bool ResidentTransfers::hung() const {
  MutexLock lock(&mutex_);
  return lost_ > 0;
}

absl::StatusOr<ResidentTransfers::Lane*> ResidentTransfers::TakeLane() {
  MutexLock lock(&mutex_);
  while (free_.empty() && lost_ < lanes_.size()) free_cv_.Wait(&mutex_);
  if (free_.empty()) return absl::InternalError("copies to the device hang");
  Lane* const lane = free_.back();
  free_.pop_back();
  return lane;
}

void ResidentTransfers::ReturnLane(Lane* lane) {
  MutexLock lock(&mutex_);
  lane->kept == nullptr ? free_.push_back(lane) : static_cast<void>(++lost_);
  // All of them when the last lane is lost: nobody would wake the next.
  free_.empty() ? free_cv_.NotifyAll() : free_cv_.NotifyOne();
}

absl::Status ResidentTransfers::Write(const ResidentRef& matrix, size_t offset,
                                      absl::Span<const HostBytes> pieces) {
  size_t bytes = 0;
  for (const HostBytes& piece : pieces) bytes += piece.size();
  if (offset > matrix->dense_bytes() || bytes > matrix->dense_bytes() - offset) {
    return absl::InvalidArgumentError(absl::StrCat("a range of ", bytes, " bytes at offset ",
                                                   offset, " must end within the matrix's ",
                                                   matrix->dense_bytes(), " bytes"));
  }
  TCGEMM_ASSIGN_OR_RETURN(const std::vector<ByteRange> missing,
                          matrix->BeginWrite({offset, offset + bytes}));
  absl::Status status;
  for (const ByteRange& range : missing) {
    if (status.ok()) status = WriteMissing(matrix, range, offset, pieces);
    matrix->EndWrite({&range, 1}, status.ok());
  }
  return status;
}

absl::Status ResidentTransfers::WriteMissing(const ResidentRef& matrix, const ByteRange& missing,
                                             size_t offset, absl::Span<const HostBytes> pieces) {
  TCGEMM_ASSIGN_OR_RETURN(Lane* const lane, TakeLane());
  absl::Status status;
  if (device_->info().unified_memory) {
    status = ForEachPart(pieces, offset, missing, [&](size_t at, HostBytes part) {
      return Copy(*lane, matrix, {at, at + part.size()}, const_cast<std::byte*>(part.data()),
                  Direction::kIn);
    });
  } else {
    for (size_t begin = missing.begin; status.ok() && begin < missing.end; begin += kPieceBytes) {
      const ByteRange range{begin, std::min(missing.end, begin + kPieceBytes)};
      std::byte* const staging = lane->staging.data();
      status = ForEachPart(pieces, offset, range, [&](size_t at, HostBytes part) {
        std::memcpy(staging + (at - begin), part.data(), part.size());
        return absl::OkStatus();
      });
      if (status.ok()) status = Copy(*lane, matrix, range, staging, Direction::kIn);
    }
  }
  ReturnLane(lane);
  return status;
}

absl::Status ResidentTransfers::Read(const ResidentRef& matrix, const ByteRange& range,
                                     std::byte* to) {
  if (range.begin > range.end || range.end > matrix->dense_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("bytes ", range.begin, " to ", range.end,
                                                   " must lie within the matrix's ",
                                                   matrix->dense_bytes()));
  }
  TCGEMM_ASSIGN_OR_RETURN(Lane* const lane, TakeLane());
  absl::Status status;
  for (size_t begin = range.begin; status.ok() && begin < range.end; begin += kPieceBytes) {
    const ByteRange piece{begin, std::min(range.end, begin + kPieceBytes)};
    std::byte* const destination = to + (begin - range.begin);
    if (device_->info().unified_memory) {
      status = Copy(*lane, matrix, piece, destination, Direction::kOut);
      continue;
    }
    status = Copy(*lane, matrix, piece, lane->staging.data(), Direction::kOut);
    if (status.ok()) std::memcpy(destination, lane->staging.data(), piece.size());
  }
  ReturnLane(lane);
  return status;
}

absl::Status ResidentTransfers::Copy(Lane& lane, const ResidentRef& matrix, const ByteRange& range,
                                     std::byte* host, Direction direction) {
  const bool into = direction == Direction::kIn;
  const std::vector<Copy2d> copies = PlanRangeCopies(matrix->view(), range, host, into);
  if (device_->info().unified_memory) {
    for (const Copy2d& copy : copies) CopyOnHost(copy);
    return absl::OkStatus();
  }
  absl::Status status;
  for (const Copy2d& copy : copies) {
    if (!status.ok()) break;
    status = Note(DeviceErrorKind::kCopy, into ? device_->CopyIn(*lane.stream, copy)
                                               : device_->CopyOut(*lane.stream, copy));
  }
  // After a failure too: copies that were asked for before it may be under way.
  absl::Status ended = Note(DeviceErrorKind::kEvent, device_->Record(*lane.stream, *lane.done));
  const bool recorded = ended.ok();
  if (recorded) ended = device_->Wait(*lane.done, kCopyLimit);
  if (!recorded || absl::IsDeadlineExceeded(ended)) {
    lane.kept = matrix;
    return absl::InternalError("a copy between host and device did not end");
  }
  if (status.ok()) status = Note(DeviceErrorKind::kEvent, ended);
  if (status.ok()) into ? events_->OnCopyIn(range.size()) : events_->OnCopyOut(range.size());
  return status;
}

absl::Status ResidentTransfers::Note(DeviceErrorKind kind, absl::Status status) {
  if (!status.ok()) events_->OnDeviceError(kind);
  return status;
}

std::vector<Copy2d> PlanRangeCopies(const MatrixView& view, const ByteRange& range, std::byte* host,
                                    bool into) {
  const size_t size = DTypeSize(view.dtype);
  const size_t row_bytes = static_cast<size_t>(view.cols) * size;
  const size_t pitch = static_cast<size_t>(view.ld) * size;
  auto* const data = static_cast<std::byte*>(const_cast<void*>(view.data));
  std::vector<Copy2d> copies;
  for (size_t at = range.begin; at < range.end;) {
    const size_t column = at % row_bytes;
    const size_t left = range.end - at;
    const bool whole = column == 0 && left >= row_bytes;
    const size_t rows = whole ? left / row_bytes : 1;
    const size_t bytes = whole ? row_bytes : std::min(row_bytes - column, left);
    std::byte* const there = data + at / row_bytes * pitch + column;
    std::byte* const here = host + (at - range.begin);
    copies.push_back({.destination = into ? there : here,
                      .source = into ? here : there,
                      .destination_pitch = into ? pitch : row_bytes,
                      .source_pitch = into ? row_bytes : pitch,
                      .row_bytes = bytes,
                      .rows = static_cast<int64_t>(rows)});
    at += rows * bytes;
  }
  return copies;
}

}  // namespace tcgemm
