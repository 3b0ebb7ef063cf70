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
# There are none without nvcc. They come first: without a GPU each says by name that it was skipped,
# and what follows says what ran.
if $everything && ctest --test-dir "build/$preset" -N -L '^gpu$' | grep 'Test *#' >/dev/null; then
  labels=(gpu "${labels[@]}")
fi

# count WORD FILE: a number of ctest's JUnit report.
count() { grep -Eom 1 "[[:space:]]$1=\"[0-9]+\"" "$2" | tr -dc 0-9; }

# Unit tests run side by side, and so do end-to-end tests, one more than there are cores since they
# mostly wait (those that measure are marked to run alone). The others use every core.
summary=()
ran=0
failures=0
skips=0
failed=0
for label in "${labels[@]}"; do
  step "$label tests"
  jobs=1
  [ "$label" != unit ] || jobs=$(nproc)
  [ "$label" != e2e ] || jobs=$(($(nproc) + 1))
  before=$SECONDS
  result=passed
  report=$root/build/$preset/$label.xml
  rm -f "$report"
  ctest --test-dir "build/$preset" -L "^$label\$" -j "$jobs" --output-on-failure \
    --no-tests=error --output-junit "$report" || { result=FAILED; failed=1; }
  bad=0 skipped=0 all=0
  if [ -e "$report" ]; then
    all=$(count tests "$report") bad=$(count failures "$report")
    skipped=$(($(count skipped "$report") + $(count disabled "$report")))
  fi
  ran=$((ran + all - skipped)) failures=$((failures + bad)) skips=$((skips + skipped))
  summary+=("$(printf '%-6s %s in %d s: %d ran, %d failed, %d skipped' "$label" "$result" \
    $((SECONDS - before)) $((all - skipped)) "$bad" "$skipped")")
done

step "summary"
printf '%s\n' "${summary[@]}"
echo "$((ran - failures)) tests passed, $failures failed, $skips skipped"
exit $failed
