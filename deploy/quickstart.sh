#!/usr/bin/env bash
# From a fresh clone to a checked product: installs what is missing, builds, starts a server (on the
# GPU if there is one, else on the CPU), multiplies with the client, checks the results, stops.
#   quickstart.sh [--keep]     --keep: leave the server running
set -euo pipefail

keep=false
case ${1:-} in
  '') ;;
  --keep) keep=true ;;
  *) echo "usage: quickstart.sh [--keep]" >&2; exit 2 ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/release
cd "$root"

say() { printf '\n== %s\n' "$*"; }

say "Installing what is missing"
deploy/install_deps.sh build

say "Building the server and the client (a few minutes the first time)"
configure_log=$(mktemp)
cmake --preset release >"$configure_log" 2>&1 || { cat "$configure_log"; exit 1; }
rm -f "$configure_log"
cmake --build --preset release --target tcgemm-server tcgemm-client

folder=$(mktemp -d)
server=
# Ends the server by its pid and removes its folder, whatever happened.
clean_up() {
  if [ -n "$server" ] && ! $keep; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  $keep || rm -rf "$folder"
}
trap clean_up EXIT

say "Starting the server"
"$build/bin/tcgemm-server" --listen 127.0.0.1:0 --listen "unix:$folder/tcgemm.sock" \
  --metrics-listen 127.0.0.1:0 >"$folder/ready" 2>"$folder/log" &
server=$!
for _ in $(seq 600); do
  [ ! -s "$folder/ready" ] || break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
if ! grep -q '^READY ' "$folder/ready"; then
  echo "The server did not get ready. Its log:" >&2
  cat "$folder/log" >&2
  exit 1
fi
cat "$folder/ready"
ready=$(cat "$folder/ready")
address=${ready#READY grpc=}
address=${address%%,*}
metrics=${ready#* metrics=}
metrics=${metrics%% *}
client() { "$build/bin/tcgemm-client" --server "$address" "$@"; }

say "tcgemm-client info"
client info
say "tcgemm-client health"
client health
say "tcgemm-client smoke: every result against the float64 reference and its error bound"
client smoke
say "The same over the unix socket, one product of random matrices"
"$build/bin/tcgemm-client" --server "unix:$folder/tcgemm.sock" matmul --random 512x384x640 --check

if $keep; then
  trap - EXIT
  disown "$server"
  say "The server is still running (pid $server)"
  echo "  $build/bin/tcgemm-client --server $address smoke"
  echo "  metrics: http://$metrics/metrics     log: $folder/log"
  echo "  stop it: kill $server"
  exit 0
fi

say "Stopping the server"
kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
tail -n 1 "$folder/log"
[ "$status" -eq 0 ] || { echo "The server ended with exit code $status" >&2; exit 1; }
say "All good: the server multiplied, and the client proved every result right."
