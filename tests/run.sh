#!/usr/bin/env bash
# Everything that must pass: installs what is missing, builds, runs the tests.
#   run.sh [--fast]     --fast: without the heavy label (ThreadSanitizer)
set -euo pipefail

fast=false
case ${1:-} in
  '') ;;
  --fast) fast=true ;;
  *) echo "usage: run.sh [--fast]" >&2; exit 2 ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
start=$SECONDS
step() { printf '\n== %4d s: %s\n' $((SECONDS - start)) "$*"; }

step "installing what is missing"
deploy/install_deps.sh test

step "building"
cmake --preset dev -DTCGEMM_WERROR=ON
cmake --build --preset dev

run() { ctest --test-dir build/dev --output-on-failure --no-tests=error "$@"; }
step "unit tests"
run -L '^unit$' -j "$(nproc)"
step "style and static checks"
run -L '^tidy$'
step "end to end: a real client against a real server"
run -L '^e2e$'
if ! $fast; then
  step "heavy: ThreadSanitizer"
  run -L '^heavy$'
fi
step "all passed"
