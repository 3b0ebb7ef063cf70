#!/usr/bin/env bash
# Fuzzes the request parser.      fuzz.sh SOURCE_DIR BUILD_DIR SECONDS
# Starts from the seeds of tests/fuzz/corpus and from what earlier runs left in BUILD_DIR.
set -euo pipefail
source_dir=$(realpath "$1")
build_dir=$(realpath -m "$2")
seconds=$3

clang=$(command -v clang++ || true)
if [[ -z $clang ]]; then
  echo "fuzz.sh: skipped: no clang++ (libFuzzer comes with it)"
  exit 77
fi
cmake -S "$source_dir" -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_COMPILER="$clang" -DTCGEMM_CUDA=OFF -DTCGEMM_BENCH=OFF
cmake --build "$build_dir" --target matmul_wire_fuzz

# New inputs go to the first folder; the input of a crash is printed as base64. libFuzzer's own exit
# code for a crash is 77, which says "skipped" here.
mkdir -p "$build_dir/corpus"
cd "$build_dir"
"$build_dir/bin/matmul_wire_fuzz" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
  -error_exitcode=1 -print_final_stats=1 "$build_dir/corpus" "$source_dir/tests/fuzz/corpus"
