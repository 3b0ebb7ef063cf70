#include "matrix/npy_header.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

// NumPy's own limit on dimensions; ours is two, but the message should say how many there are.
constexpr size_t kMaxDimensions = 64;

// A reader of the little of Python's grammar that numpy.lib.format writes.
class LiteralReader {
 public:
  explicit LiteralReader(absl::string_view text) : text_(text) {}

  absl::StatusOr<NpyHeader> ReadDict() {
    NpyHeader header;
    bool has_descr = false, has_order = false, has_shape = false;
    if (!Take('{')) return Expected("'{'");
    while (!Take('}')) {
      TCGEMM_ASSIGN_OR_RETURN(const std::string key, ReadString("a key"));
      if (!Take(':')) return Expected("':'");
      bool* seen = key == "descr"           ? &has_descr
                   : key == "fortran_order" ? &has_order
                   : key == "shape"         ? &has_shape
                                            : nullptr;
      if (seen == nullptr) return Error(absl::StrCat("unknown key '", absl::CEscape(key), "'"));
      if (*seen) return Error(absl::StrCat("key '", key, "' comes twice"));
      *seen = true;
      TCGEMM_RETURN_IF_ERROR(ReadValue(key, header));
      if (Take(',')) continue;
      if (!Take('}')) return Expected("',' or '}'");
      break;
    }
    if (Peek() != '\0' || position_ < text_.size()) return Expected("the end");
    if (!has_descr || !has_order || !has_shape) {
      return Error("one of the keys 'descr', 'fortran_order', 'shape' is missing");
    }
    return header;
  }

 private:
  absl::Status ReadValue(absl::string_view key, NpyHeader& header) {
    if (key == "descr") {
      if (Peek() == '[') return Error("the type is structured (a list of fields)");
      TCGEMM_ASSIGN_OR_RETURN(header.descr, ReadString("a type string"));
    } else if (key == "fortran_order") {
      TCGEMM_ASSIGN_OR_RETURN(header.fortran_order, ReadBool());
    } else {
      TCGEMM_ASSIGN_OR_RETURN(header.shape, ReadShape());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadString(absl::string_view what) {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') return Expected(absl::StrCat(what, " in quotes"));
    const size_t end = text_.find(quote, position_ + 1);
    if (end == absl::string_view::npos) return Error("a string does not end");
    std::string value(text_.substr(position_ + 1, end - position_ - 1));
    position_ = end + 1;
    return value;
  }

  absl::StatusOr<bool> ReadBool() {
    Peek();  // skips blanks
    for (const auto& [word, value] : {std::pair("True", true), std::pair("False", false)}) {
      if (text_.substr(position_, absl::string_view(word).size()) != word) continue;
      position_ += absl::string_view(word).size();
      return value;
    }
    return Expected("True or False");
  }

  absl::StatusOr<std::vector<int64_t>> ReadShape() {
    std::vector<int64_t> shape;
    if (!Take('(')) return Expected("'(' of the shape");
    while (!Take(')')) {
      if (shape.size() == kMaxDimensions) return Error("the shape has too many dimensions");
      TCGEMM_ASSIGN_OR_RETURN(const int64_t dimension, ReadDimension());
      shape.push_back(dimension);
      if (Take(',')) continue;
      if (!Take(')')) return Expected("',' or ')' of the shape");
      break;
    }
    return shape;
  }

  absl::StatusOr<int64_t> ReadDimension() {
    if (Peek() == '-') return Error("a dimension is negative");
    const size_t start = position_;
    while (position_ < text_.size() && absl::ascii_isdigit(text_[position_])) ++position_;
    if (position_ == start) return Expected("a dimension");
    int64_t value;
    if (!absl::SimpleAtoi(text_.substr(start, position_ - start), &value)) {
      return Error("a dimension does not fit 64 bits");
    }
    // Python 2 wrote 3L.
    if (position_ < text_.size() && text_[position_] == 'L') ++position_;
    return value;
  }

  // The next character that is not blank, or NUL at the end.
  char Peek() {
    while (position_ < text_.size() && absl::ascii_isspace(text_[position_])) ++position_;
    return position_ < text_.size() ? text_[position_] : '\0';
  }
  bool Take(char c) {
    if (Peek() != c) return false;
    ++position_;
    return true;
  }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(what, " (header byte ", position_, ")"));
  }
  absl::Status Expected(absl::string_view what) {
    return Error(absl::StrCat("expected ", what, ", found \"",
                              absl::CEscape(text_.substr(position_, 16)), "\""));
  }

  absl::string_view text_;
  size_t position_ = 0;
};

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view text) {
  return LiteralReader(text).ReadDict();
}

std::string MakeNpyHeader(absl::string_view descr, int64_t rows, int64_t cols) {
  constexpr absl::string_view kMagic("\x93NUMPY\x01\x00", 8);  // format 1.0
  constexpr size_t kLengthBytes = 2;
  std::string dict = absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (",
                                  rows, ", ", cols, "), }");
  // Blanks, then a newline, so that the data starts at a multiple of 64.
  const size_t used = kMagic.size() + kLengthBytes + dict.size() + 1;
  dict.append((64 - used % 64) % 64, ' ');
  dict.push_back('\n');
  const char length[kLengthBytes] = {static_cast<char>(dict.size() & 0xff),
                                     static_cast<char>(dict.size() >> 8)};
  return absl::StrCat(kMagic, absl::string_view(length, kLengthBytes), dict);
}

}  // namespace tcgemm
