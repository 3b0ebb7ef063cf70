#!/usr/bin/env bash
# A compiler launcher: runs the command and keeps what it says on stderr beside its object, as
# OBJECT.log. For ptxas, which tells there the registers, stack and spills of each kernel.
set -euo pipefail
object= previous=
for word in "$@"; do
  [ "$previous" != -o ] || object=$word
  previous=$word
done
status=0
"$@" 2>"$object.log" || status=$?
cat "$object.log" >&2
exit "$status"
