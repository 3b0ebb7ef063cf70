#!/usr/bin/env bash
# Builds the unit tests (and for asan the server) with a sanitizer and runs them.
#   sanitize.sh asan|tsan SOURCE_DIR BUILD_DIR
set -euo pipefail
preset=$1
source_dir=$2
build_dir=$3

case $preset in
  asan) sanitizers=address,undefined onednn=ON ;;
  # oneDNN's library is not instrumented; the plain backend runs on the same threads.
  tsan) sanitizers=thread onednn=OFF ;;
  *) echo "sanitize.sh: unknown preset '$preset'" >&2; exit 2 ;;
esac

cmake -S "$source_dir" -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DTCGEMM_CUDA=OFF -DTCGEMM_BENCH=OFF -DTCGEMM_SANITIZE=$sanitizers -DTCGEMM_ONEDNN=$onednn
cmake --build "$build_dir"

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="suppressions=$source_dir/tests/heavy/tsan_suppressions.txt:\
ignore_noninstrumented_modules=1:history_size=4:second_deadlock_stack=1"

# The canaries first: a sanitizer that finds nothing planted proves nothing.
ctest --test-dir "$build_dir" -L sanitizer-canary --output-on-failure --no-tests=error
ctest --test-dir "$build_dir" -L '^unit$' --output-on-failure --no-tests=error -j "$(nproc)"

if [ "$preset" = asan ]; then
  # The hostile and the drain suites once more, against the instrumented server.
  for suite in hostile_test stock_client_test; do
    TCGEMM_BIN="$build_dir/bin" TCGEMM_SLOW_SERVER=1 \
      /usr/bin/python3 "$source_dir/tests/e2e/$suite.py" -v
  done
fi
