#!/usr/bin/env bash
# Builds tests with a sanitizer and runs them.      sanitize.sh asan|tsan SOURCE_DIR BUILD_DIR
#   asan: every unit test, and the hostile end-to-end suites against an instrumented server
#   tsan: what has threads: base, kernels, engine, the load generator, the server over a fake device
#     that delays and fails; first the canary
set -euo pipefail
preset=$1
source_dir=$2
build_dir=$3

configure() {
  cmake -S "$source_dir" -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DTCGEMM_CUDA=OFF -DTCGEMM_BENCH=OFF -DCMAKE_UNITY_BUILD=ON \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" "$@"
}

run_asan() {
  configure -DTCGEMM_SANITIZE=address,undefined
  cmake --build "$build_dir"
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
  ASAN_OPTIONS+=:allocator_may_return_null=1
  export UBSAN_OPTIONS=print_stacktrace=1
  local suppressions=$source_dir/tests/heavy/lsan_suppressions.txt
  export LSAN_OPTIONS=suppressions=$suppressions:print_suppressions=0
  ctest --test-dir "$build_dir" -L '^unit$' --output-on-failure --no-tests=error -j "$(nproc)"
  export TCGEMM_BIN="$build_dir/bin" TCGEMM_STUBS="$build_dir/tests/e2e/stubs"
  /usr/bin/python3 -W ignore "$source_dir/tests/e2e/hostile_test.py" -v
  # Those that do not weigh memory, which is the sanitizer's.
  /usr/bin/python3 -W ignore "$source_dir/tests/e2e/stream_test.py" -v DrainTest \
    StreamTest.test_hostile_sequences StreamTest.test_clients_that_vanish_or_stop \
    StreamTest.test_many_streams_at_once_end_or_are_refused
}

run_tsan() {
  # oneDNN's library is not instrumented; the plain backend runs on the same threads.
  configure -DTCGEMM_SANITIZE=thread -DTCGEMM_ONEDNN=OFF
  local tests=(thread_pool_test strand_test mutex_test kernels_test buffer_pool_test batcher_test
    device_worker_test engine_test call_timer_test receive_budget_test rpc_server_test
    matrix_service_test stream_parts_test stream_service_test client_load_test
    engine_region_test region_call_test security_test notable_calls_test telemetry_test)
  cmake --build "$build_dir" --target "${tests[@]}" tsan_canary
  local suppressions=$source_dir/tests/heavy/tsan_suppressions.txt
  export TSAN_OPTIONS="suppressions=$suppressions:ignore_noninstrumented_modules=1:history_size=4"
  # A test asks for more than there is, and wants to be told.
  TSAN_OPTIONS+=":allocator_may_return_null=1"
  # First the canary: a run that does not find the race planted in a handler proves nothing.
  local found
  found=$("$build_dir/bin/tsan_canary" 2>&1 || true)
  grep -q 'WARNING: ThreadSanitizer: data race' <<<"$found" || { echo "canary not found"; exit 1; }
  grep -q 'RacyEvents' <<<"$found" || { echo "the canary is not in the report"; exit 1; }
  local test
  for test in "${tests[@]}"; do
    "$build_dir/tests/$test" --gtest_brief=1
  done
}

case $preset in
  asan) run_asan ;;
  tsan) run_tsan ;;
  *) echo "sanitize.sh: unknown preset '$preset'" >&2; exit 2 ;;
esac
