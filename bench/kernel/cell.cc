#include "bench/kernel/cell.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tcgemm::bench {
namespace {

std::vector<Cell> Squares(std::initializer_list<int64_t> sides) {
  std::vector<Cell> cells;
  for (int64_t n : sides) {
    cells.push_back({.shape = {.m = n, .n = n, .k = n}, .b_transposed = true});
  }
  return cells;
}

Cell Of(const GemmShape& shape, const char* layout = "NT") {
  return {.shape = shape, .a_transposed = layout[0] == 'T', .b_transposed = layout[1] == 'T'};
}

// What a service sees: squares, few to many rows against the weights of language models, the
// layouts of training, few tiles with a long K, many with a short one, and sizes that align to
// nothing.
std::vector<Cell> Served() {
  std::vector<Cell> cells = Squares({512, 1024, 2048, 4096, 6144, 8192, 16384});
  constexpr std::pair<int64_t, int64_t> kWeights[] = {{2112, 7168}, {576, 7168},   {24576, 1536},
                                                      {32768, 512}, {7168, 16384}, {4096, 7168},
                                                      {7168, 2048}, {4096, 4096}};
  for (const auto& [n, k] : kWeights) {
    for (const int64_t m : {1, 8, 16, 32, 64, 128, 256, 4096}) {
      if (m != n || n != k) cells.push_back(Of({.m = m, .n = n, .k = k}));
    }
  }
  for (const char* const layout : {"NN", "TN"}) {
    cells.push_back(Of({.m = 4096, .n = 7168, .k = 16384}, layout));
    cells.push_back(Of({.m = 4096, .n = 4096, .k = 7168}, layout));
  }
  constexpr GemmShape kOthers[] = {{4096, 512, 32768},  {576, 4096, 7168},  {4096, 4096, 14336},
                                   {65536, 1024, 1024}, {2304, 2112, 8192}, {16896, 256, 256},
                                   {17024, 256, 256},   {4100, 4104, 4104}, {1000, 1001, 1003},
                                   {4095, 4095, 4095},  {4097, 4097, 4097}, {2047, 2049, 2051},
                                   {333, 777, 1000}};
  for (const GemmShape& shape : kOthers) cells.push_back(Of(shape));
  return cells;
}

std::vector<Cell> FewRows() {
  std::vector<Cell> cells;
  for (const Cell& cell : Served()) {
    if (cell.shape.m <= 64) cells.push_back(cell);
  }
  return cells;
}

// Too few tiles for all multiprocessors, and K to share out.
std::vector<Cell> FewTiles() {
  constexpr GemmShape kShapes[] = {{4096, 512, 32768}, {576, 4096, 7168},  {256, 576, 7168},
                                   {128, 576, 7168},   {64, 576, 7168},    {256, 2112, 7168},
                                   {128, 2112, 7168},  {64, 7168, 16384},  {128, 7168, 16384},
                                   {256, 512, 16384},  {128, 4096, 16384}, {512, 512, 8192}};
  std::vector<Cell> cells;
  for (const GemmShape& shape : kShapes) cells.push_back(Of(shape));
  return cells;
}

std::vector<Cell> Accumulate() {
  std::vector<Cell> cells = Squares({1024, 2048, 4096, 8192});
  cells.push_back(Of({.m = 64, .n = 4096, .k = 7168}));
  cells.push_back(Of({.m = 4096, .n = 4096, .k = 7168}, "TN"));
  for (Cell& cell : cells) {
    cell.output = DType::kFp32;
    cell.accumulate = true;
  }
  return cells;
}

absl::StatusOr<Cell> ParseCell(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  Cell cell;
  if (parts.size() != 5 || !absl::SimpleAtoi(parts[0], &cell.shape.m) ||
      !absl::SimpleAtoi(parts[1], &cell.shape.n) || !absl::SimpleAtoi(parts[2], &cell.shape.k) ||
      cell.shape.m < 1 || cell.shape.n < 1 || cell.shape.k < 1) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not m,n,k,layout,out"));
  }
  if (parts[3] != "NN" && parts[3] != "TN" && parts[3] != "NT" && parts[3] != "TT") {
    return absl::InvalidArgumentError(absl::StrCat("layout ", parts[3], " is not NN, TN, NT, TT"));
  }
  if (parts[4] != "bf16" && parts[4] != "fp32" && parts[4] != "fp32+c") {
    return absl::InvalidArgumentError(
        absl::StrCat("output ", parts[4], " is not bf16, fp32, fp32+c"));
  }
  cell.a_transposed = parts[3][0] == 'T';
  cell.b_transposed = parts[3][1] == 'T';
  cell.output = parts[4] == "bf16" ? DType::kBf16 : DType::kFp32;
  cell.accumulate = parts[4] == "fp32+c";
  return cell;
}

}  // namespace

std::string Cell::LayoutString() const {
  return absl::StrCat(a_transposed ? "T" : "N", b_transposed ? "T" : "N");
}

std::string Cell::OutputString() const {
  return absl::StrCat(std::string(DTypeName(output)), accumulate ? "+c" : "");
}

std::string Cell::ToString() const {
  return absl::StrCat(shape.ToString(), " ", LayoutString(), " ", OutputString());
}

absl::StatusOr<std::vector<Cell>> ParseCells(absl::string_view text) {
  if (text == "squares") return Squares({512, 1024, 2048, 4096, 8192});
  if (text == "rungs") return Squares({1024, 2048, 4096, 8192});
  if (text == "served") return Served();
  if (text == "few_rows") return FewRows();
  if (text == "unaligned") return Squares({4095, 4096, 4097});
  if (text == "accumulate") return Accumulate();
  if (text == "few_tiles") return FewTiles();
  std::vector<Cell> cells;
  for (const absl::string_view part : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const absl::StatusOr<Cell> cell = ParseCell(part);
    if (!cell.ok()) return cell.status();
    cells.push_back(*cell);
  }
  if (cells.empty()) return absl::InvalidArgumentError("no cells to measure");
  return cells;
}

}  // namespace tcgemm::bench
