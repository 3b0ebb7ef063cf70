#!/usr/bin/env bash
# Everything that must pass: installs what is missing, builds, runs the tests, says what passed.
#   run.sh [--fast] [--preset NAME] [LABEL...]
#     --fast     without the heavy label (ThreadSanitizer)
#     --preset   a configure preset with tests: dev (the default), cpu, clang
#     LABEL      only these of: unit tidy e2e heavy gpu; gpu tests skip themselves without a GPU
set -euo pipefail

usage() {
  echo "usage: run.sh [--fast] [--preset NAME] [unit|tidy|e2e|heavy|gpu ...]" >&2
  exit 2
}

fast=false
preset=dev
labels=()
everything=false
while [ $# -gt 0 ]; do
  case $1 in
    --fast) fast=true ;;
    --preset)
      [ $# -ge 2 ] || usage
      preset=$2
      shift
      ;;
    unit | tidy | e2e | heavy | gpu) labels+=("$1") ;;
    *) usage ;;
  esac
  shift
done
if [ ${#labels[@]} -eq 0 ]; then
  everything=true
  labels=(unit tidy e2e)
  $fast || labels+=(heavy)
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
start=$SECONDS
step() { printf '\n== %4d s: %s\n' $((SECONDS - start)) "$*"; }

step "installing what is missing"
deploy/install_deps.sh test

step "building"
cmake --preset "$preset" -DTCGEMM_WERROR=ON
cmake --build --preset "$preset"
# There are none without nvcc.
if $everything && ctest --test-dir "build/$preset" -N -L '^gpu$' | grep 'Test *#' >/dev/null; then
  labels+=(gpu)
fi

# Only unit tests run side by side: the others measure time and memory, or use every core.
summary=()
failed=0
for label in "${labels[@]}"; do
  step "$label tests"
  jobs=1
  [ "$label" != unit ] || jobs=$(nproc)
  before=$SECONDS
  result=passed
  ctest --test-dir "build/$preset" -L "^$label\$" -j "$jobs" --output-on-failure \
    --no-tests=error || { result=FAILED; failed=1; }
  summary+=("$(printf '%-6s %s in %d s' "$label" "$result" $((SECONDS - before)))")
done

step "summary"
printf '%s\n' "${summary[@]}"
exit $failed
