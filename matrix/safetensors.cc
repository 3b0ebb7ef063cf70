#include "matrix/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "matrix/file.h"
#include "matrix/safetensors_header.h"

namespace tcgemm {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is");

constexpr int64_t kLengthBytes = 8;
constexpr char kDefaultName[] = "matrix";

struct LocatedTensors {
  std::vector<SafetensorsEntry> entries;
  int64_t data_offset = 0;
};

absl::StatusOr<LocatedTensors> ReadHeader(const OpenedFile& opened, const std::string& path,
                                          const SafetensorsOptions& options) {
  uint64_t length = 0;
  TCGEMM_RETURN_IF_ERROR(
      ReadBytes(opened.file.get(), path, "the header's length", kLengthBytes, &length));
  if (length > static_cast<uint64_t>(options.max_header_bytes)) {
    return FileError(path, absl::StrCat("the header says it has ", length, " bytes; at most ",
                                        options.max_header_bytes, " are supported"));
  }
  // Before its memory is taken.
  const int64_t available = opened.bytes - kLengthBytes;
  if (static_cast<int64_t>(length) > available) {
    return FileError(path, absl::StrCat("truncated: the header takes ", length,
                                        " bytes, the file has ", available, " of them"));
  }
  std::string text(length, '\0');
  TCGEMM_RETURN_IF_ERROR(ReadBytes(opened.file.get(), path, "the header", length, text.data()));
  absl::StatusOr<std::vector<SafetensorsEntry>> entries =
      ParseSafetensorsHeader(text, available - static_cast<int64_t>(length));
  if (!entries.ok()) return FileError(path, entries.status().message());
  return LocatedTensors{.entries = *std::move(entries),
                        .data_offset = kLengthBytes + static_cast<int64_t>(length)};
}

std::string SomeNames(const std::vector<SafetensorsEntry>& entries) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(kShown, entries.size()); ++i) {
    names.push_back(QuoteTensorName(entries[i].name));
  }
  if (entries.size() > kShown) names.push_back("…");
  return absl::StrCat(entries.size(), entries.size() == 1 ? " tensor" : " tensors",
                      names.empty() ? "" : ": ", absl::StrJoin(names, ", "));
}

absl::StatusOr<SafetensorsEntry> FindTensor(const std::vector<SafetensorsEntry>& entries,
                                            const SafetensorsPath& path) {
  if (path.tensor.empty()) {
    if (entries.size() == 1) return entries[0];
    return FileError(path.file, absl::StrCat("choose one with ", path.file,
                                             ":TENSOR; the file has ", SomeNames(entries)));
  }
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& e) { return e.name == path.tensor; });
  if (entry != entries.end()) return *entry;
  return FileError(path.file, absl::StrCat("no tensor ", QuoteTensorName(path.tensor),
                                           "; the file has ", SomeNames(entries)));
}

absl::Status TensorError(const SafetensorsPath& path, const SafetensorsEntry& entry,
                         absl::string_view what) {
  return FileError(path.file, absl::StrCat("tensor ", QuoteTensorName(entry.name), ": ", what));
}

absl::StatusOr<DType> TypeOf(const SafetensorsEntry& entry, const SafetensorsPath& path) {
  if (entry.dtype == "BF16") return DType::kBf16;
  if (entry.dtype == "F32") return DType::kFp32;
  return TensorError(path, entry,
                     absl::StrCat("dtype '", absl::CEscape(entry.dtype.substr(0, 16)),
                                  "'; supported are BF16 and F32"));
}

// Checks the limit before anything is allocated.
absl::Status CheckTensor(const SafetensorsEntry& entry, DType dtype, const SafetensorsPath& path,
                         const SafetensorsOptions& options) {
  const std::string shape = absl::StrCat("shape [", absl::StrJoin(entry.shape, ", "), "]");
  if (entry.shape.size() != 2) {
    return TensorError(
        path, entry,
        absl::StrCat(shape, " has ", entry.shape.size(), " dimensions; 2 are supported"));
  }
  const auto size = static_cast<int64_t>(DTypeSize(dtype));
  int64_t bytes;
  if (__builtin_mul_overflow(entry.shape[0], entry.shape[1], &bytes) ||
      __builtin_mul_overflow(bytes, size, &bytes) || bytes > options.max_bytes) {
    return TensorError(
        path, entry,
        absl::StrCat(shape, " ", entry.dtype, " is larger than ", options.max_bytes, " bytes"));
  }
  const std::string offsets = absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "]");
  if (entry.end - entry.begin != bytes) {
    return TensorError(path, entry,
                       absl::StrCat(shape, " ", entry.dtype, " takes ", bytes, " bytes, ", offsets,
                                    " hold ", entry.end - entry.begin));
  }
  if (entry.begin % size != 0) {
    return TensorError(
        path, entry,
        absl::StrCat(offsets, " are misaligned: ", entry.dtype, " begins at a multiple of ", size));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<SafetensorsPath> ParseSafetensorsPath(absl::string_view path) {
  constexpr absl::string_view kSuffix = ".safetensors";
  for (size_t at = path.find(kSuffix); at != absl::string_view::npos;
       at = path.find(kSuffix, at + 1)) {
    const size_t end = at + kSuffix.size();
    if (end == path.size()) return SafetensorsPath{.file = std::string(path)};
    if (path[end] == ':') {
      return SafetensorsPath{.file = std::string(path.substr(0, end)),
                             .tensor = std::string(path.substr(end + 1))};
    }
  }
  return std::nullopt;
}

absl::StatusOr<Matrix> ReadSafetensors(const SafetensorsPath& path,
                                       const SafetensorsOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(const OpenedFile opened, OpenForReading(path.file));
  TCGEMM_ASSIGN_OR_RETURN(const LocatedTensors located, ReadHeader(opened, path.file, options));
  TCGEMM_ASSIGN_OR_RETURN(const SafetensorsEntry entry, FindTensor(located.entries, path));
  TCGEMM_ASSIGN_OR_RETURN(const DType dtype, TypeOf(entry, path));
  TCGEMM_RETURN_IF_ERROR(CheckTensor(entry, dtype, path, options));
  if (fseeko(opened.file.get(), located.data_offset + entry.begin, SEEK_SET) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("reading ", path.file));
  }
  Matrix matrix(entry.shape[0], entry.shape[1], dtype);
  TCGEMM_RETURN_IF_ERROR(ReadBytes(opened.file.get(), path.file, "the tensor", matrix.bytes(),
                                   matrix.data<std::byte>()));
  return matrix;
}

absl::Status WriteSafetensors(const SafetensorsPath& path, const MatrixView& view) {
  if (view.dtype != DType::kBf16 && view.dtype != DType::kFp32) {
    return FileError(path.file, absl::StrCat("cannot write ", std::string(DTypeName(view.dtype)),
                                             "; supported are bf16 and fp32"));
  }
  const auto size = static_cast<int64_t>(DTypeSize(view.dtype));
  const absl::StatusOr<std::string> header =
      MakeSafetensorsHeader({.name = path.tensor.empty() ? kDefaultName : path.tensor,
                             .dtype = view.dtype == DType::kBf16 ? "BF16" : "F32",
                             .shape = {view.op_rows(), view.op_cols()},
                             .end = view.op_rows() * view.op_cols() * size});
  if (!header.ok()) return FileError(path.file, header.status().message());
  return ReplaceFile(path.file, [&](std::FILE* file) { return WriteMatrix(file, *header, view); });
}

}  // namespace tcgemm
