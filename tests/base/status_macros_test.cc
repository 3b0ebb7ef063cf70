#include "base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace tcgemm {
namespace {

absl::Status ReturnIfError(const absl::Status& status, int& evaluations, bool& went_on) {
  const auto evaluate = [&] {
    ++evaluations;
    return status;
  };
  TCGEMM_RETURN_IF_ERROR(evaluate());
  went_on = true;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnIfErrorGoesOnWhenOk) {
  int evaluations = 0;
  bool went_on = false;
  EXPECT_TRUE(ReturnIfError(absl::OkStatus(), evaluations, went_on).ok());
  EXPECT_TRUE(went_on);
  EXPECT_EQ(evaluations, 1);
}

TEST(StatusMacrosTest, ReturnIfErrorReturnsTheStatusUnchanged) {
  int evaluations = 0;
  bool went_on = false;
  const absl::Status error = absl::DataLossError("bits fell out");
  EXPECT_EQ(ReturnIfError(error, evaluations, went_on), error);
  EXPECT_FALSE(went_on);
  EXPECT_EQ(evaluations, 1);
}

TEST(StatusMacrosTest, ReturnIfErrorIsOneStatement) {
  const auto function = [](bool choose) -> absl::Status {
    if (choose)
      TCGEMM_RETURN_IF_ERROR(absl::AbortedError("chosen"));
    else
      return absl::OkStatus();
    return absl::OkStatus();
  };
  EXPECT_TRUE(function(false).ok());
  EXPECT_EQ(function(true).code(), absl::StatusCode::kAborted);
}

// A move-only value: the macro must move it out.
absl::StatusOr<std::unique_ptr<int>> Box(absl::StatusOr<int> value) {
  if (!value.ok()) return value.status();
  return std::make_unique<int>(*value);
}

absl::StatusOr<int> Sum(absl::StatusOr<int> x, absl::StatusOr<int> y) {
  TCGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, Box(x));
  std::unique_ptr<int> second;
  TCGEMM_ASSIGN_OR_RETURN(second, Box(y));
  return *first + *second;
}

TEST(StatusMacrosTest, AssignOrReturnDeclaresAndAssigns) { EXPECT_EQ(*Sum(2, 3), 5); }

TEST(StatusMacrosTest, AssignOrReturnReturnsTheFirstError) {
  const absl::Status first = absl::NotFoundError("x");
  const absl::Status second = absl::InternalError("y");
  EXPECT_EQ(Sum(first, second).status(), first);
  EXPECT_EQ(Sum(2, second).status(), second);
}

}  // namespace
}  // namespace tcgemm
