#include "matrix/npy.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "matrix/bf16.h"
#include "matrix/file.h"
#include "matrix/npy_header.h"

namespace tcgemm {
namespace {

static_assert(std::endian::native == std::endian::little, "the types read and written are '<…'");

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr absl::string_view kSupportedTypes = "'<f4' (fp32), '<V2' and '|V2' (bf16)";
// A matrix's header takes some 80 bytes. NumPy itself refuses more than 10,000 by default.
constexpr size_t kMaxHeaderBytes = 64 * 1024;

struct LocatedHeader {
  NpyHeader header;
  int64_t data_offset = 0;
};

absl::StatusOr<LocatedHeader> ReadHeader(std::FILE* file, const std::string& path) {
  unsigned char start[8];
  TCGEMM_RETURN_IF_ERROR(ReadBytes(file, path, "the magic of a .npy file", sizeof(start), start));
  if (std::memcmp(start, kMagic.data(), kMagic.size()) != 0) {
    return FileError(path, absl::StrCat("not a .npy file: it starts with \"",
                                        absl::CHexEscape(absl::string_view(
                                            reinterpret_cast<char*>(start), kMagic.size())),
                                        "\" instead of \"\\x93NUMPY\""));
  }
  const int major = start[6];
  const int minor = start[7];
  if (major < 1 || major > 3 || minor != 0) {
    return FileError(
        path, absl::StrCat(".npy format ", major, ".", minor, "; 1.0, 2.0 and 3.0 are supported"));
  }
  unsigned char encoded[4] = {};
  const size_t length_bytes = major == 1 ? 2 : 4;
  TCGEMM_RETURN_IF_ERROR(ReadBytes(file, path, "the header's length", length_bytes, encoded));
  const uint32_t length = std::bit_cast<uint32_t>(encoded);
  if (length > kMaxHeaderBytes) {
    return FileError(path, absl::StrCat("the header says it has ", length, " bytes; at most ",
                                        kMaxHeaderBytes, " are supported"));
  }
  std::string text(length, '\0');
  TCGEMM_RETURN_IF_ERROR(ReadBytes(file, path, "the header", length, text.data()));
  absl::StatusOr<NpyHeader> header = ParseNpyHeader(text);
  if (!header.ok()) {
    return FileError(path, absl::StrCat("bad .npy header: ", header.status().message()));
  }
  const int64_t data_offset = static_cast<int64_t>(sizeof(start) + length_bytes + length);
  return LocatedHeader{.header = *std::move(header), .data_offset = data_offset};
}

absl::StatusOr<DType> TypeOf(const NpyHeader& header, const std::string& path,
                             const NpyOptions& options) {
  const std::string& descr = header.descr;
  if (descr == "<f4") return DType::kFp32;
  if (descr == "<V2" || descr == "|V2") return DType::kBf16;
  if (descr == "<u2" && options.u2_is_bf16) return DType::kBf16;
  std::string why;
  if (descr == "<u2") why = " ('<u2' as bf16 only when asked for: --npy-u2-is-bf16)";
  if (absl::StartsWith(descr, ">")) why = " (big-endian)";
  if (absl::StrContains(descr, "O")) why = " (Python objects)";
  return FileError(path, absl::StrCat("type '", absl::CEscape(descr), "'", why, "; supported are ",
                                      kSupportedTypes));
}

struct StoredShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

absl::StatusOr<StoredShape> ShapeOf(const NpyHeader& header, const std::string& path) {
  const std::vector<int64_t>& shape = header.shape;
  // One dimension has no order: NumPy writes either.
  if (shape.size() == 1) return StoredShape{.rows = 1, .cols = shape[0]};
  if (shape.size() == 2) {
    return header.fortran_order ? StoredShape{.rows = shape[1], .cols = shape[0]}
                                : StoredShape{.rows = shape[0], .cols = shape[1]};
  }
  return FileError(path, absl::StrCat("the array has ", shape.size(), " dimensions (",
                                      absl::StrJoin(shape, ", "), "); 1 and 2 are supported"));
}

// Checks the size against the limit before anything is allocated, and against the file's.
absl::Status CheckSize(const std::string& path, const StoredShape& shape, DType dtype,
                       int64_t available, const NpyOptions& options) {
  int64_t bytes;
  if (__builtin_mul_overflow(shape.rows, shape.cols, &bytes) ||
      __builtin_mul_overflow(bytes, static_cast<int64_t>(DTypeSize(dtype)), &bytes) ||
      bytes > options.max_bytes) {
    return FileError(path, absl::StrCat("an array of ", shape.rows, "x", shape.cols, " ",
                                        std::string(DTypeName(dtype)), " is larger than ",
                                        options.max_bytes, " bytes"));
  }
  if (available == bytes) return absl::OkStatus();
  return FileError(
      path, absl::StrCat(available < bytes ? "truncated" : "trailing bytes", ": ", shape.rows, "x",
                         shape.cols, " ", std::string(DTypeName(dtype)), " takes ", bytes,
                         " bytes, the file has ", available, " after its header"));
}

}  // namespace

absl::StatusOr<NpyMatrix> ReadNpy(const std::string& path, const NpyOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(const OpenedFile opened, OpenForReading(path));
  TCGEMM_ASSIGN_OR_RETURN(const LocatedHeader located, ReadHeader(opened.file.get(), path));
  const NpyHeader& header = located.header;
  TCGEMM_ASSIGN_OR_RETURN(const DType dtype, TypeOf(header, path, options));
  TCGEMM_ASSIGN_OR_RETURN(const StoredShape shape, ShapeOf(header, path));
  TCGEMM_RETURN_IF_ERROR(
      CheckSize(path, shape, dtype, opened.bytes - located.data_offset, options));
  NpyMatrix result{.matrix = Matrix(shape.rows, shape.cols, dtype),
                   .fortran_order = header.fortran_order && header.shape.size() == 2};
  TCGEMM_RETURN_IF_ERROR(ReadBytes(opened.file.get(), path, "the array", result.matrix.bytes(),
                                   result.matrix.data<std::byte>()));
  return result;
}

absl::Status WriteNpy(const std::string& path, const MatrixView& view) {
  if (view.dtype != DType::kBf16 && view.dtype != DType::kFp32) {
    return FileError(path, absl::StrCat("cannot write ", std::string(DTypeName(view.dtype)),
                                        "; supported are ", kSupportedTypes));
  }
  const std::string header =
      MakeNpyHeader(view.dtype == DType::kBf16 ? "<V2" : "<f4", view.op_rows(), view.op_cols());
  return ReplaceFile(path, [&](std::FILE* file) { return WriteMatrix(file, header, view); });
}

Matrix ToBf16Matrix(const MatrixView& view) {
  Matrix result(view.op_rows(), view.op_cols(), DType::kBf16);
  Bf16* out = result.data<Bf16>();
  for (int64_t i = 0; i < view.op_rows(); ++i) {
    for (int64_t j = 0; j < view.op_cols(); ++j) {
      const int64_t index = view.IndexOf(i, j);
      // bf16 is copied as bits: a signalling NaN stays one.
      *out++ = view.dtype == DType::kBf16 ? static_cast<const Bf16*>(view.data)[index]
                                          : ToBf16(static_cast<float>(ElementAt(view, i, j)));
    }
  }
  return result;
}

}  // namespace tcgemm
