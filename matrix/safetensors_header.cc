#include "matrix/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

constexpr char kMetadata[] = "__metadata__";
constexpr size_t kMaxDimensions = 64;

absl::Status TensorError(const SafetensorsEntry& entry, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", QuoteTensorName(entry.name), ": ", what));
}

std::string OffsetsText(const SafetensorsEntry& entry) {
  return absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "]");
}

// Takes nlohmann's events one by one: a document of 100 MB never becomes a tree, and a name that
// comes twice is seen. (Members are named by that library.)
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  absl::Status status = absl::InvalidArgumentError("the header is not a JSON object");
  std::vector<SafetensorsEntry> entries;

  bool start_object(size_t) override {
    if (place_ == Place::kStart) return Go(Place::kTop);
    if (place_ == Place::kTensorValue) return Go(Place::kTensor);
    if (place_ == Place::kMetadataValue) return Go(Place::kMetadata);
    return Unexpected("an object");
  }

  bool key(std::string& key) override {
    if (place_ == Place::kTop) return BeginTensor(key);
    if (place_ == Place::kMetadata) return Go(Place::kMetadataText);
    const int field = key == "dtype" ? 1 : key == "shape" ? 2 : key == "data_offsets" ? 4 : 0;
    if (field == 0) {
      return Fail(
          TensorError(entries.back(), absl::StrCat("unknown field ", QuoteTensorName(key))));
    }
    if ((fields_seen_ & field) != 0) {
      return Fail(TensorError(entries.back(), absl::StrCat("the field ", key, " comes twice")));
    }
    fields_seen_ |= field;
    return Go(field == 1 ? Place::kDtype : field == 2 ? Place::kShapeValue : Place::kOffsetsValue);
  }

  bool end_object() override {
    if (place_ == Place::kMetadata) return Go(Place::kTop);
    if (place_ == Place::kTop) {
      status = absl::OkStatus();
      return Go(Place::kEnd);
    }
    if (fields_seen_ != 7) {
      return Fail(TensorError(entries.back(),
                              "one of the fields dtype, shape and data_offsets is missing"));
    }
    return Go(Place::kTop);
  }

  bool start_array(size_t) override {
    if (place_ == Place::kShapeValue) return Go(Place::kShape);
    if (place_ == Place::kOffsetsValue) return Go(Place::kOffsets);
    return Unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::kOffsets) {
      SafetensorsEntry& entry = entries.back();
      if (offsets_.size() != 2) {
        return Fail(TensorError(
            entry, absl::StrCat("data_offsets has ", offsets_.size(), " numbers instead of 2")));
      }
      entry.begin = offsets_[0];
      entry.end = offsets_[1];
    }
    return Go(Place::kTensor);
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadataText) return Go(Place::kMetadata);
    if (place_ != Place::kDtype) return Unexpected("a string");
    entries.back().dtype = value;
    return Go(Place::kTensor);
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Unexpected("a number");
    const bool is_shape = place_ == Place::kShape;
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(TensorError(
          entries.back(), absl::StrCat(FieldName(), " has ", value, ", more than 63 bits hold")));
    }
    std::vector<int64_t>& numbers = is_shape ? entries.back().shape : offsets_;
    if (numbers.size() == kMaxDimensions) {
      return Fail(TensorError(entries.back(), absl::StrCat(FieldName(), " has more than ",
                                                           kMaxDimensions, " numbers")));
    }
    numbers.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool number_integer(int64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Unexpected("a number");
    return Fail(
        TensorError(entries.back(), absl::StrCat(FieldName(), " has ", value, ", below 0")));
  }

  bool number_float(double, const std::string& text) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Unexpected("a number");
    return Fail(TensorError(
        entries.back(), absl::StrCat(FieldName(), " has ", absl::string_view(text).substr(0, 40),
                                     ", no integer of 63 bits")));
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a truth value"); }
  bool binary(nlohmann::json::binary_t&) override { return Unexpected("binary data"); }

  // The library's own text shows the token, of up to 100 MB.
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("the header is not JSON from its byte ", position, " on")));
  }

 private:
  // What comes next.
  enum class Place {
    kStart,  // the object that is the document
    kTop,    // a tensor's name or __metadata__
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kTensorValue,  // its object
    kTensor,       // a field of it
    kDtype,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kEnd
  };

  bool Go(Place place) {
    place_ = place;
    return true;
  }

  bool BeginTensor(std::string& name) {
    if (name == kMetadata) {
      if (metadata_seen_) return Fail(absl::InvalidArgumentError("__metadata__ comes twice"));
      metadata_seen_ = true;
      return Go(Place::kMetadataValue);
    }
    if (entries.size() == kMaxSafetensors) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("the header has more than ", kMaxSafetensors, " tensors")));
    }
    entries.push_back({.name = std::move(name)});
    fields_seen_ = 0;
    offsets_.clear();
    return Go(Place::kTensorValue);
  }

  const char* FieldName() const { return place_ == Place::kShape ? "shape" : "data_offsets"; }

  bool Unexpected(absl::string_view what) {
    if (place_ == Place::kStart) return false;  // status says it
    if (place_ == Place::kMetadataValue || place_ == Place::kMetadataText) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("__metadata__ has ", what, " where an object of strings was expected")));
    }
    const char* const expected = place_ == Place::kDtype          ? "the string dtype"
                                 : place_ == Place::kShapeValue   ? "the array shape"
                                 : place_ == Place::kOffsetsValue ? "the array data_offsets"
                                 : place_ == Place::kTensorValue  ? "an object"
                                                                  : "a number";
    return Fail(
        TensorError(entries.back(), absl::StrCat(what, " where ", expected, " was expected")));
  }

  bool Fail(absl::Status why) {
    status = std::move(why);
    return false;
  }

  Place place_ = Place::kStart;
  bool metadata_seen_ = false;
  int fields_seen_ = 0;  // bits of the fields of this tensor
  std::vector<int64_t> offsets_;
};

absl::Status CheckNames(const std::vector<SafetensorsEntry>& entries) {
  std::vector<absl::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", QuoteTensorName(*twice), ": the name comes twice"));
}

// The entries, in the order of their bytes, cover [0, buffer_bytes) exactly.
absl::Status CheckCover(const std::vector<SafetensorsEntry>& entries, int64_t buffer_bytes) {
  const SafetensorsEntry* before = nullptr;
  int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin > entry.end) {
      return TensorError(entry, absl::StrCat(OffsetsText(entry), " end before they begin"));
    }
    if (entry.end > buffer_bytes) {
      return TensorError(entry, absl::StrCat("truncated: ", OffsetsText(entry), ", the file has ",
                                             buffer_bytes, " bytes after its header"));
    }
    if (entry.begin < covered) {
      return TensorError(entry,
                         absl::StrCat(OffsetsText(entry), " overlap those of ",
                                      QuoteTensorName(before->name), ", which end at ", covered));
    }
    if (entry.begin > covered) {
      return TensorError(entry, absl::StrCat(OffsetsText(entry), " leave a hole after byte ",
                                             covered, "; the format allows none"));
    }
    covered = entry.end;
    before = &entry;
  }
  if (covered == buffer_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("trailing bytes: the tensors take ", covered,
                                                 " bytes, the file has ", buffer_bytes,
                                                 " after its header"));
}

}  // namespace

std::string QuoteTensorName(absl::string_view name) {
  constexpr size_t kLongest = 80;
  const bool cut = name.size() > kLongest;
  return absl::StrCat("'", absl::Utf8SafeCEscape(name.substr(0, kLongest)), cut ? "…" : "", "'");
}

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view text,
                                                                     int64_t buffer_bytes) {
  // The format asks for it; the library would also take blanks and a byte order mark.
  if (text.empty() || text[0] != '{') {
    return absl::InvalidArgumentError("the header does not begin with '{'");
  }
  HeaderReader reader;
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  TCGEMM_RETURN_IF_ERROR(reader.status);
  std::vector<SafetensorsEntry> entries = std::move(reader.entries);
  TCGEMM_RETURN_IF_ERROR(CheckNames(entries));
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  TCGEMM_RETURN_IF_ERROR(CheckCover(entries, buffer_bytes));
  return entries;
}

absl::StatusOr<std::string> MakeSafetensorsHeader(const SafetensorsEntry& entry) {
  const std::string name =
      nlohmann::json(entry.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (entry.name == kMetadata || nlohmann::json::parse(name) != entry.name) {
    return absl::InvalidArgumentError(
        absl::StrCat(QuoteTensorName(entry.name), " cannot name a tensor"));
  }
  std::string json = absl::StrCat("{", name, ":{\"dtype\":\"", entry.dtype,
                                  "\",\"shape\":", nlohmann::json(entry.shape).dump(),
                                  ",\"data_offsets\":[", entry.begin, ",", entry.end, "]}}");
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string header(8, '\0');
  for (size_t byte = 0; byte < 8; ++byte) {
    header[byte] = static_cast<char>(uint64_t{json.size()} >> (8 * byte));
  }
  return header + json;
}

}  // namespace tcgemm
