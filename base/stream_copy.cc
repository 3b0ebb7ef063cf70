#include "base/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tcgemm {

#ifdef __x86_64__

namespace {

constexpr size_t kLineBytes = 64;

// Copies whole lines to an aligned target; `bytes` is a multiple of kLineBytes. A line that is
// written in part is read first after all, so its four stores follow each other.
void StreamLinesSse2(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i line[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                            _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
    _mm_stream_si128(target, line[0]);
    _mm_stream_si128(target + 1, line[1]);
    _mm_stream_si128(target + 2, line[2]);
    _mm_stream_si128(target + 3, line[3]);
  }
}

// A line is one store here. Four lines in flight: 64 MiB on two cores of a Xeon (virtual
// machine) took 5.2 ms, against 6.4 with SSE2 and 7.5 with memcpy.
__attribute__((target("avx512f"))) void StreamLinesAvx512(std::byte* to, const std::byte* from,
                                                          size_t bytes) {
  size_t at = 0;
  for (; bytes - at >= 4 * kLineBytes; at += 4 * kLineBytes) {
    const __m512i line[] = {_mm512_loadu_si512(from + at),
                            _mm512_loadu_si512(from + at + kLineBytes),
                            _mm512_loadu_si512(from + at + 2 * kLineBytes),
                            _mm512_loadu_si512(from + at + 3 * kLineBytes)};
    auto* target = reinterpret_cast<__m512i*>(to + at);
    _mm512_stream_si512(target, line[0]);
    _mm512_stream_si512(target + 1, line[1]);
    _mm512_stream_si512(target + 2, line[2]);
    _mm512_stream_si512(target + 3, line[3]);
  }
  StreamLinesSse2(to + at, from + at, bytes - at);
}

using StreamLines = void (*)(std::byte*, const std::byte*, size_t);

StreamLines ChooseStreamLines() {
  return __builtin_cpu_supports("avx512f") ? StreamLinesAvx512 : StreamLinesSse2;
}

}  // namespace

void StreamCopy(void* to, const void* from, size_t bytes) {
  static const StreamLines stream_lines = ChooseStreamLines();
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const size_t past_line = reinterpret_cast<uintptr_t>(target) % kLineBytes;
  const size_t head = std::min(bytes, past_line == 0 ? 0 : kLineBytes - past_line);
  if (head > 0) std::memcpy(target, source, head);
  const size_t body = (bytes - head) / kLineBytes * kLineBytes;
  stream_lines(target + head, source + head, body);
  const size_t done = head + body;
  if (done < bytes) std::memcpy(target + done, source + done, bytes - done);
  // Non-temporal stores are not ordered by the locks that hand the bytes over.
  _mm_sfence();
}

#else

void StreamCopy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif

}  // namespace tcgemm
