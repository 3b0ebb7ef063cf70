// A large product cut into bands of rows of D, so that one band leaves for the host while the next
// one is computed: policy and arithmetic alone.
//
// A row of D depends on its row of op(A), on op(B) and on the types alone, so that the cut changes
// no bit.
#ifndef TCGEMM_SERVER_ENGINE_ROW_BANDS_H_
#define TCGEMM_SERVER_ENGINE_ROW_BANDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/gemm.h"
#include "server/engine/slab.h"

namespace tcgemm {

struct RowBand {
  int64_t first = 0;  // of D
  int64_t rows = 0;
};

// More bands hide no more: with four, three quarters of the copy run beside the kernel and the
// kernel's first quarter beside nothing, and each band costs a launch, a copy and three events.
inline constexpr int kMostBands = 4;
// Of D, what a band brings at least: 75 µs of a bus of 55 GB/s, for some 10 µs of calls.
inline constexpr size_t kLeastBandBytes = size_t{4} << 20;
// Rows of a band are a multiple of the tallest tile's.
inline constexpr int64_t kBandRowUnit = 128;

// The bands of a product that is alone in its batch, top to bottom; none when it is better in one
// piece: D stays on the device, has less than two bands, or the kernel takes more than twice as
// long as D's way back, so that there is little to hide, and less than a band's last tiles may
// cost. `flops_per_second`: the device's.
std::vector<RowBand> PlanBands(const GemmProblem& problem, const OnDevice& on_device,
                               double flops_per_second);

// The rows of D, and of what goes with them: of op(A), of C, of a bias that is a column.
GemmProblem BandOf(const GemmProblem& problem, const RowBand& band);

// The operands that come before the first band's product, of a job whose matrices are `on_device`;
// and those of a band, before its own: the rows of an A that is stored row by row.
OnDevice BeforeBands(const GemmProblem& problem, OnDevice on_device);
OnDevice WithBand(const GemmProblem& problem, const OnDevice& on_device);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_ROW_BANDS_H_
