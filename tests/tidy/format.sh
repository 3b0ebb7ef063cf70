#!/usr/bin/env bash
# Every C++ file is as clang-format leaves it.   format.sh SOURCE_DIR
set -euo pipefail
cd "$1"
find base matrix kernels server client bench tests \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0 |
  xargs -0 clang-format --dry-run --Werror
