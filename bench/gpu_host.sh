#!/usr/bin/env bash
# Everything that needs a GPU, in one go: tests, compute-sanitizer, the kernels' benchmark, server
# and client end to end, the RPC benchmark, the peers. A table last; logs and results in OUT_DIR.
#
#   TCGEMM_BIN=FOLDER gpu_host.sh OUT_DIR [quick|full] [STEP...]
#
# TCGEMM_BIN holds gpu_test, kernel_bench, rpc_bench, tcgemm-server and tcgemm-client. Steps: tests
# sanitize kernels serve rpc batching road peers; all of them by default. quick: memcheck alone,
# short benchmarks, no compiler of peers. road: every path beside its limit (road_limits.py).
# Exit: 0 all passed · 1 something failed · 2 usage.
set -euo pipefail

usage() { sed -n '5,10p' "${BASH_SOURCE[0]}" >&2; exit 2; }
[ $# -ge 1 ] || usage
out=$1
mode=${2:-full}
case $mode in quick | full) ;; *) usage ;; esac
shift; [ $# -eq 0 ] || shift
steps=${*:-tests sanitize kernels serve rpc batching road peers}
bin=$(cd "${TCGEMM_BIN:?the folder with the binaries}" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)

table=$out/table.txt
: >"$table"
failed=0
server=
sockets=$(mktemp -d)

clean_up() {
  if [ -n "$server" ]; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$sockets"
}
trap clean_up EXIT

wanted() { case " $steps " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

note() { printf '%-5s %-22s %5s s  %s\n' "$1" "$2" "$3" "$4" >>"$table"; }

# run NAME SECONDS COMMAND...: a step with a time limit and a log; its verdict goes to the table.
run() {
  local name=$1 limit=$2 rc=0 start=$SECONDS verdict=PASS
  shift 2
  echo "== $name" >&2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null || rc=$?
  [ "$rc" -eq 0 ] || { verdict=FAIL; failed=1; }
  local why=
  [ "$rc" -ne 124 ] || why="stopped after $limit s; "
  note "$verdict" "$name" $((SECONDS - start)) "$why$(summary "$name")"
  [ "$rc" -eq 0 ] || tail -n 15 "$out/$name.log" | sed "s/^/$name: /" >&2
}

# What a log says in one line.
summary() {
  case $1 in
    gpu_test)
      grep -E '^\[ +(PASSED|SKIPPED|FAILED) +\] [0-9]+ tests?' "$out/$1.log" | tr -s ' \n' ' ' ;;
    sanitize_*) grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$1.log" | tail -n 1 ;;
    smoke) tail -n 1 "$out/$1.log" | cut -c 1-100 ;;
    *) ;;
  esac || true
}

# kernel_bench needs libcublas.so.13 and libcublasLt.so.13: the toolkit's, or PyTorch's, which lie
# in one folder.
find_cublas() {
  ldd "$bin/kernel_bench" | grep -q 'libcublas.*not found' || return 0
  local folder
  folder=$(python3 -c 'import glob, os, sys
found = [f for p in sys.path for f in glob.glob(p + "/nvidia/*/lib/libcublasLt.so.13")]
print(os.path.dirname(found[0]) if found else "")')
  export LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-}
}

sanitize() {
  local tools=memcheck
  [ "$mode" = quick ] || tools="memcheck racecheck synccheck"
  local filter='Kernels/GpuShapesTest.FewEdges/*:Kernels/GpuBatchTest.ANeighbourOfNans*:PtxTest.*'
  for tool in $tools; do
    run "sanitize_$tool" 200 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$bin/gpu_test" --gtest_brief=1 --gtest_filter="$filter"
  done
  # What nobody wrote and somebody reads.
  [ "$mode" = quick ] || run sanitize_initcheck 100 compute-sanitizer --tool initcheck \
    --error-exitcode 9 "$bin/gpu_test" --gtest_brief=1 \
    --gtest_filter='Kernels/GpuShapesTest.FewEdges/*'
}

# Starts the server and sets `addresses` (unix and TCP); says whether it runs on the GPU.
start_server() {
  "$bin/tcgemm-server" --device cuda --listen "unix:$sockets/tcgemm.sock" --listen 127.0.0.1:0 \
    --metrics-listen 127.0.0.1:0 --pinned-bytes 4GiB --queue-bytes 4GiB --resident-bytes 4GiB \
    --allow-shared-memory --shared-memory-bytes 4GiB \
    >"$out/ready.log" 2>"$out/server.log" </dev/null &
  server=$!
  for _ in $(seq 600); do
    [ ! -s "$out/ready.log" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  if grep -q '^READY .*device=cuda:0$' "$out/ready.log"; then
    note PASS ready "$SECONDS" "$(cat "$out/ready.log")"
  else
    note FAIL ready "$SECONDS" "$(tail -n 1 "$out/server.log" | cut -c 1-160)"
    failed=1
    return 1
  fi
  local list
  list=$(sed 's/^READY grpc=//; s/ .*//' "$out/ready.log")
  IFS=, read -r -a addresses <<<"$list"
}

stop_server() {
  local rc=0
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" || rc=$?
  server=
  [ "$rc" -eq 0 ] || failed=1
  note "$([ "$rc" -eq 0 ] && echo PASS || echo FAIL)" drain "$SECONDS" \
    "exit $rc; $(tail -n 1 "$out/server.log" | cut -c 1-120)"
}

serve_steps() {
  start_server || return 0
  if wanted serve; then
    run smoke 120 "$bin/tcgemm-client" --server "${addresses[0]}" --timeout 30s smoke
    run client_check 60 "$bin/tcgemm-client" --server "${addresses[1]}" --timeout 30s \
      matmul --random 1021x1531x2039 --check
  fi
  if wanted rpc; then
    local seconds=2
    [ "$mode" = full ] || seconds=1
    run rpc_bench 240 "$bin/rpc_bench" --server "${addresses[0]}" --server "${addresses[1]}" \
      --paths inline,stream,lanes,shared_memory,shared_memory_resident --seconds "$seconds" \
      --csv "$out/rpc.csv"
  fi
  stop_server
}

nvidia-smi >"$out/nvidia-smi.log" 2>&1 || true
if wanted tests; then
  run gpu_test 300 "$bin/gpu_test" --gtest_output="json:$out/gpu_test.json"
  if grep -q 'PASSED  \] 0 tests' "$out/gpu_test.log"; then
    note FAIL gpu_test 0 "every test was skipped: $(grep -m 1 '^no GPU' "$out/gpu_test.log")"
    failed=1
  fi
fi
if wanted sanitize; then sanitize; fi
if wanted kernels; then
  find_cublas
  run kernel_bench 100 "$bin/kernel_bench" --cells rungs --budget 60 --out "$out"
fi
if wanted serve || wanted rpc; then serve_steps; fi
if wanted batching; then
  run batching 120 python3 "$here/batching_compare.py" "$bin" --seconds 1
  run stages 60 python3 "$here/stages.py" "$bin"
fi
if wanted road; then
  find_cublas
  run road 400 python3 "$here/road_limits.py" "$bin" "$out"
fi
if wanted peers; then
  seconds=3
  [ "$mode" = full ] || seconds=1
  run python_service 180 python3 "$here/peers/python_service.py" --seconds "$seconds" \
    --csv "$out/rpc_peers.csv"
  [ "$mode" = quick ] || run triton_bench 400 python3 "$here/peers/triton_bench.py" \
    --csv "$out/rungs_peers.csv"
fi

# The benchmarks' own tables, then the verdicts.
for name in kernel_bench rpc_bench batching stages road python_service triton_bench; do
  [ ! -s "$out/$name.log" ] || { echo "-- $name"; tail -n 90 "$out/$name.log"; }
done
echo "-- verdicts"
cat "$table"
exit "$failed"
