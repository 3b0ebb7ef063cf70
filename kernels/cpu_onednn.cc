#include "kernels/cpu_onednn.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu_pack.h"

namespace tcgemm {
namespace {

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

// oneDNN's exceptions end here.
template <typename Body>
absl::Status CallOnednn(const char* what, const Body& body) {
  try {
    body();
  } catch (const dnnl::error& e) {
    std::string message = absl::StrCat("oneDNN: ", what, ": ", e.what());
    return e.status == dnnl_unimplemented ? absl::UnimplementedError(message)
                                          : absl::InternalError(message);
  }
  return absl::OkStatus();
}

// This thread's OpenMP teams have one thread, so oneDNN never spawns one: the runner's threads are
// all there are. Costs a store.
void OneOpenMpThread() { omp_set_num_threads(1); }

// What oneDNN decides at creation depends on the number of threads too.
class OneOpenMpThreadScope {
 public:
  OneOpenMpThreadScope() : before_(omp_get_max_threads()) { OneOpenMpThread(); }
  ~OneOpenMpThreadScope() { omp_set_num_threads(before_); }

 private:
  const int before_;
};

// The primitives of one (chunk, block): shared by all workers, as they hold no data.
struct Primitives {
  dnnl::memory::desc panel, block, block_transposed, packed, accumulators;
  dnnl::memory::desc scratchpad;  // the largest of the three
  dnnl::matmul multiply_add;
  dnnl::reorder pack, pack_transposed;
};

dnnl::reorder CreateReorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
                            const dnnl::memory::desc& to, size_t* scratchpad_bytes) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to, attr);
  *scratchpad_bytes = std::max(*scratchpad_bytes, desc.scratchpad_desc().get_size());
  return dnnl::reorder(desc);
}

dnnl::matmul::primitive_desc DescribeMatmul(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                            const dnnl::memory::desc& b,
                                            const dnnl::memory::desc& c) {
  dnnl::post_ops accumulate;
  accumulate.append_sum(1.0f);
  dnnl::primitive_attr attr;
  attr.set_post_ops(accumulate);
  // The library's own scratchpad is one for all threads (Debian builds without
  // DNNL_ENABLE_CONCURRENT_EXEC): each worker brings its own.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, c, attr);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attr, engine);
#endif
}

Primitives CreatePrimitives(const dnnl::engine& engine, Type type, int chunk, int block) {
  Primitives made;
  made.panel = {{kCpuPanelRows, chunk}, type, Tag::ab};
  made.block = {{chunk, block}, type, Tag::ab};
  made.block_transposed = {{chunk, block}, type, Tag::ba};
  made.accumulators = {{kCpuPanelRows, block}, Type::f32, Tag::ab};
  const dnnl::matmul::primitive_desc desc =
      DescribeMatmul(engine, made.panel, {{chunk, block}, type, Tag::any}, made.accumulators);
  made.packed = desc.weights_desc();
  made.multiply_add = dnnl::matmul(desc);
  size_t bytes = desc.scratchpad_desc().get_size();
  made.pack = CreateReorder(engine, made.block, made.packed, &bytes);
  made.pack_transposed = CreateReorder(engine, made.block_transposed, made.packed, &bytes);
  made.scratchpad = {{static_cast<int64_t>(bytes)}, Type::u8, Tag::a};
  return made;
}

using Arguments = std::unordered_map<int, dnnl::memory>;

// One worker's memory objects for one (chunk, block), made once.
struct Calls {
  const Primitives* primitives;
  dnnl::memory block, block_transposed, panel, accumulators;
  Arguments pack, pack_transposed, multiply_add;
};

template <size_t kCount>
int IndexOf(const std::array<int, kCount>& extents, int extent) {
  return static_cast<int>(std::find(extents.begin(), extents.end(), extent) - extents.begin());
}

// Matmuls of one operand type on every shape that can occur. Not an inner kernel yet: it takes
// operands of its own type.
class MatmulSet {
 public:
  MatmulSet(Type type, int workers) : engine_(dnnl::engine::kind::cpu, 0), workers_(workers) {
    for (int chunk : kCpuChunkExtents) {
      for (int block : kCpuBlockExtents) {
        primitives_.push_back(CreatePrimitives(engine_, type, chunk, block));
      }
    }
    for (Worker& worker : workers_) PrepareWorker(worker);
  }

  absl::Status SetBlock(int worker_index, const CpuBlock& block, const void* data) {
    OneOpenMpThread();
    Worker& worker = workers_[worker_index];
    worker.current =
        &worker.calls[IndexOf(kCpuChunkExtents, block.chunk) * kCpuBlockExtents.size() +
                      IndexOf(kCpuBlockExtents, block.block)];
    Calls& calls = *worker.current;
    return CallOnednn("packing B", [&] {
      // oneDNN takes no const pointers; it only reads this one.
      void* source = const_cast<void*>(data);
      if (block.transposed) {
        calls.block_transposed.set_data_handle(source);
        calls.primitives->pack_transposed.execute(worker.stream, calls.pack_transposed);
      } else {
        calls.block.set_data_handle(source);
        calls.primitives->pack.execute(worker.stream, calls.pack);
      }
    });
  }

  absl::Status MultiplyAdd(int worker_index, const void* panel, float* accumulators) {
    OneOpenMpThread();
    Worker& worker = workers_[worker_index];
    Calls& calls = *worker.current;
    return CallOnednn("matmul", [&] {
      calls.panel.set_data_handle(const_cast<void*>(panel));
      calls.accumulators.set_data_handle(accumulators);
      calls.primitives->multiply_add.execute(worker.stream, calls.multiply_add);
    });
  }

  // Whether every row of a panel gets the same bits for the same operands: the premise of "the same
  // bits". It is no promise of oneDNN's: version 2.6 on AVX2 breaks it for panels of 32 rows, as
  // its kernel takes 6 rows at a time and treats the last two otherwise.
  absl::StatusOr<bool> RowsAreAlike() {
    const size_t element = primitives_[0].panel.get_size() / (kCpuPanelRows * kCpuChunkExtents[0]);
    ScratchArray<char> panel = AllocateScratch<char>(kCpuPanelRows * kCpuMaxChunk * element);
    ScratchArray<char> block = AllocateScratch<char>(kCpuMaxChunk * kCpuMaxBlock * element);
    ScratchArray<float> sums = AllocateScratch<float>(kCpuPanelRows * kCpuMaxBlock);
    for (int chunk : kCpuChunkExtents) {
      FillSample(panel.get(), element, kCpuPanelRows * chunk, /*period=*/chunk);
      for (int extent : kCpuBlockExtents) {
        FillSample(block.get(), element, chunk * extent, /*period=*/chunk * extent);
        std::fill_n(sums.get(), kCpuPanelRows * extent, 1.0f);
        TCGEMM_RETURN_IF_ERROR(SetBlock(0, {nullptr, chunk, extent, false, false}, block.get()));
        TCGEMM_RETURN_IF_ERROR(MultiplyAdd(0, panel.get(), sums.get()));
        for (int i = 1; i < kCpuPanelRows; ++i) {
          if (std::memcmp(&sums[i * extent], &sums[0], extent * sizeof(float)) != 0) return false;
        }
      }
    }
    return true;
  }

 private:
  // Values in ±[2^-7, 2^9), so far apart that their sums' last bits show the order of summation;
  // repeated after `period`.
  static void FillSample(char* destination, size_t element, int count, int period) {
    std::minstd_rand random(1);
    std::vector<uint16_t> values(count);
    for (int i = 0; i < count; ++i) {
      const uint32_t drawn = static_cast<uint32_t>(random() >> 8);
      const uint32_t magnitude = 0x3c00 + (drawn & 0x07ff);
      values[i] = i < period ? magnitude | (drawn & 0x8000) : values[i - period];
    }
    if (element == sizeof(uint16_t)) {
      std::memcpy(destination, values.data(), count * sizeof(uint16_t));
    } else {
      Widen(values.data(), count, reinterpret_cast<float*>(destination));
    }
  }

  struct Worker {
    dnnl::stream stream;
    ScratchArray<char> packed;
    ScratchArray<char> scratchpad;
    std::vector<Calls> calls;  // [chunk][block]
    Calls* current = nullptr;
  };

  void PrepareWorker(Worker& worker) {
    size_t packed_bytes = 0;
    size_t scratchpad_bytes = 0;
    for (const Primitives& made : primitives_) {
      packed_bytes = std::max(packed_bytes, made.packed.get_size());
      scratchpad_bytes = std::max(scratchpad_bytes, made.scratchpad.get_size());
    }
    worker.stream = dnnl::stream(engine_);
    worker.packed = AllocateScratch<char>(packed_bytes);
    worker.scratchpad = AllocateScratch<char>(std::max<size_t>(scratchpad_bytes, 1));
    for (const Primitives& made : primitives_) worker.calls.push_back(MakeCalls(made, worker));
  }

  Calls MakeCalls(const Primitives& made, const Worker& worker) const {
    Calls calls;
    calls.primitives = &made;
    calls.block = dnnl::memory(made.block, engine_, nullptr);
    calls.block_transposed = dnnl::memory(made.block_transposed, engine_, nullptr);
    calls.panel = dnnl::memory(made.panel, engine_, nullptr);
    calls.accumulators = dnnl::memory(made.accumulators, engine_, nullptr);
    const dnnl::memory packed(made.packed, engine_, worker.packed.get());
    const dnnl::memory scratchpad(made.scratchpad, engine_, worker.scratchpad.get());
    calls.pack = {
        {DNNL_ARG_FROM, calls.block}, {DNNL_ARG_TO, packed}, {DNNL_ARG_SCRATCHPAD, scratchpad}};
    calls.pack_transposed = calls.pack;
    calls.pack_transposed[DNNL_ARG_FROM] = calls.block_transposed;
    calls.multiply_add = {{DNNL_ARG_SRC, calls.panel},
                          {DNNL_ARG_WEIGHTS, packed},
                          {DNNL_ARG_DST, calls.accumulators},
                          {DNNL_ARG_SCRATCHPAD, scratchpad}};
    return calls;
  }

  const dnnl::engine engine_;
  std::vector<Primitives> primitives_;  // [chunk][block]
  std::vector<Worker> workers_;
};

class Fp32Kernel final : public CpuInnerKernel {
 public:
  explicit Fp32Kernel(int workers) : matmuls_(Type::f32, workers), workers_(workers) {}
  absl::StatusOr<bool> RowsAreAlike() { return matmuls_.RowsAreAlike(); }

  absl::Status SetBlock(int worker, const CpuBlock& block) override {
    float* wide = workers_[worker].block.get();
    Widen(block.data, int64_t{block.chunk} * block.block, wide);
    return matmuls_.SetBlock(worker, block, wide);
  }

  absl::Status MultiplyAdd(int worker, const CpuPanel& panel, float* accumulators) override {
    float* wide = workers_[worker].panel.get();
    Widen(panel.data, int64_t{kCpuPanelRows} * panel.chunk, wide);
    return matmuls_.MultiplyAdd(worker, wide, accumulators);
  }

 private:
  struct Worker {
    ScratchArray<float> panel = AllocateScratch<float>(kCpuPanelRows * kCpuMaxChunk);
    ScratchArray<float> block = AllocateScratch<float>(kCpuMaxChunk * kCpuMaxBlock);
  };
  MatmulSet matmuls_;
  std::vector<Worker> workers_;
};

// VDPBF16PS (and AMX's TDPBF16PS) read subnormal operands as zero, whatever MXCSR says (Intel SDM,
// VDPBF16PS). A block of op(B), or a row of a panel, that holds one takes the fp32 kernel instead:
// still a function of that row and of op(B) alone.
class Bf16Kernel final : public CpuInnerKernel {
 public:
  Bf16Kernel(int workers, CpuInnerKernel* fp32)
      : matmuls_(Type::bf16, workers), fp32_(fp32), workers_(workers) {}
  absl::StatusOr<bool> RowsAreAlike() { return matmuls_.RowsAreAlike(); }

  absl::Status SetBlock(int worker, const CpuBlock& block) override {
    Worker& mine = workers_[worker];
    mine.block = block;
    mine.fp32_is_set = false;
    if (block.any_subnormal) return SetFp32Block(worker);
    return matmuls_.SetBlock(worker, block, block.data);
  }

  absl::Status MultiplyAdd(int worker, const CpuPanel& panel, float* accumulators) override {
    Worker& mine = workers_[worker];
    if (mine.block.any_subnormal) return fp32_->MultiplyAdd(worker, panel, accumulators);
    if (!panel.any_subnormal) return matmuls_.MultiplyAdd(worker, panel.data, accumulators);

    TCGEMM_RETURN_IF_ERROR(SetFp32Block(worker));
    const size_t row_bytes = mine.block.block * sizeof(float);
    std::memcpy(mine.exact.get(), accumulators, kCpuPanelRows * row_bytes);
    TCGEMM_RETURN_IF_ERROR(fp32_->MultiplyAdd(worker, panel, mine.exact.get()));
    TCGEMM_RETURN_IF_ERROR(matmuls_.MultiplyAdd(worker, panel.data, accumulators));
    for (int i = 0; i < panel.rows; ++i) {
      if (!panel.row_subnormal[i]) continue;
      const int64_t at = int64_t{i} * mine.block.block;
      std::memcpy(accumulators + at, mine.exact.get() + at, row_bytes);
    }
    return absl::OkStatus();
  }

 private:
  struct Worker {
    ScratchArray<float> exact = AllocateScratch<float>(kCpuPanelRows * kCpuMaxBlock);
    CpuBlock block = {};
    bool fp32_is_set = false;
  };

  absl::Status SetFp32Block(int worker) {
    Worker& mine = workers_[worker];
    if (mine.fp32_is_set) return absl::OkStatus();
    mine.fp32_is_set = true;
    return fp32_->SetBlock(worker, mine.block);
  }

  MatmulSet matmuls_;
  CpuInnerKernel* const fp32_;
  std::vector<Worker> workers_;
};

// The values are sets of bits, of which larger ISAs have more.
bool Includes(dnnl::cpu_isa isa, dnnl::cpu_isa wanted) {
  const auto wanted_bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(isa) & wanted_bits) == wanted_bits;
}

const char* IsaName(dnnl::cpu_isa isa) {
  if (Includes(isa, dnnl::cpu_isa::avx512_core_amx)) return "avx512_amx";
  if (Includes(isa, dnnl::cpu_isa::avx512_core_bf16)) return "avx512_bf16";
  if (Includes(isa, dnnl::cpu_isa::avx512_core)) return "avx512";
  if (Includes(isa, dnnl::cpu_isa::avx2)) return "avx2";
  return Includes(isa, dnnl::cpu_isa::avx) ? "avx" : "sse41";
}

absl::Status CheckRowsAreAlike(const absl::StatusOr<bool>& alike, const OnednnKernels& kernels) {
  if (!alike.ok()) return alike.status();
  if (*alike) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("oneDNN ", kernels.version, " on ", kernels.isa,
                                               " rounds a row of D by its place in a panel"));
}

}  // namespace

absl::StatusOr<OnednnKernels> CreateOnednnKernels(int workers) {
  const OneOpenMpThreadScope scope;
  OnednnKernels kernels;
  const dnnl_version_t* version = dnnl_version();
  kernels.version = absl::StrCat(version->major, ".", version->minor, ".", version->patch);
  std::unique_ptr<Fp32Kernel> fp32;
  std::unique_ptr<Bf16Kernel> bf16;
  TCGEMM_RETURN_IF_ERROR(CallOnednn("creating primitives", [&] {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    kernels.isa = IsaName(isa);
    fp32 = std::make_unique<Fp32Kernel>(workers);
    if (Includes(isa, dnnl::cpu_isa::avx512_core_bf16)) {
      bf16 = std::make_unique<Bf16Kernel>(workers, fp32.get());
    }
  }));
  TCGEMM_RETURN_IF_ERROR(CheckRowsAreAlike(fp32->RowsAreAlike(), kernels));
  if (bf16 != nullptr) {
    TCGEMM_RETURN_IF_ERROR(CheckRowsAreAlike(bf16->RowsAreAlike(), kernels));
  }
  kernels.fp32 = std::move(fp32);
  kernels.bf16 = std::move(bf16);
  return kernels;
}

}  // namespace tcgemm
