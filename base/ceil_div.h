// Division that rounds up: how many pieces of one size something takes.
#ifndef TCGEMM_BASE_CEIL_DIV_H_
#define TCGEMM_BASE_CEIL_DIV_H_

#include <cstdint>

namespace tcgemm {

// ⌈size / piece⌉ without overflow; size ≥ 0, piece ≥ 1.
constexpr int64_t CeilDiv(int64_t size, int64_t piece) {
  return size / piece + (size % piece != 0 ? 1 : 0);
}

}  // namespace tcgemm

#endif  // TCGEMM_BASE_CEIL_DIV_H_
