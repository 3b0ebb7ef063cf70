#!/usr/bin/env bash
# The CPU image, built and run without a daemon or a registry: as its own user and process 1, on a
# read-only root, under a memory limit, it passes smoke and drains. Needs root, buildah, cgroups and
# the distribution's archive; compiles everything.
#   image.sh SOURCE_DIR      TCGEMM_IMAGE_BASE: a base image to take; without, debootstrap makes one
#                            TCGEMM_IMAGE_CCACHE: a folder for its compiler cache, for the next time
set -euo pipefail

source=$(cd "$1" && pwd)
limit_bytes=$((1 << 30))
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
[ "$(id -u)" -eq 0 ] || { echo "image.sh: needs root, to change the root folder" >&2; exit 1; }
for tool in buildah unshare; do
  command -v "$tool" >/dev/null || { echo "image.sh: needs $tool" >&2; exit 1; }
done

folder=$(mktemp -d)
group=
container=
server=
finish() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  [ -z "$container" ] || buildah rm "$container" >/dev/null || true
  [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
  rm -rf --one-file-system "$folder"
}
trap finish EXIT
step() { printf '== %s\n' "$*"; }
fail() { echo "FAILED: $*"; tail -n 20 "$folder"/*.log 2>/dev/null; exit 1; }

base=${TCGEMM_IMAGE_BASE:-}
if [ -z "$base" ]; then
  step "a base"
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  debootstrap --variant=minbase "$codename" "$folder/base" >"$folder/base.log"
  rm -f "$folder/base/etc/apt/sources.list"
  for file in sources.list sources.list.d apt.conf.d trusted.gpg.d; do
    [ ! -e "/etc/apt/$file" ] || cp -aL "/etc/apt/$file" "$folder/base/etc/apt/"
  done
  base=localhost/tcgemm-test-base
  made=$(buildah from scratch)
  buildah add -q "$made" "$folder/base" / >/dev/null
  buildah commit -q "$made" "$base" >/dev/null
  buildah rm "$made" >/dev/null
fi

step "building on $base"
image=localhost/tcgemm-test:cpu
cache=()
if [ -n "${TCGEMM_IMAGE_CCACHE:-}" ]; then
  mkdir -p "$TCGEMM_IMAGE_CCACHE"
  cache=(--volume "$TCGEMM_IMAGE_CCACHE:/root/.cache/ccache")
fi
buildah bud "${cache[@]}" --layers=false --build-arg "BASE=$base" --build-arg COMMIT=image-test -t "$image" \
  -f "$source/deploy/Dockerfile" --target cpu "$source" >"$folder/build.log" 2>&1 ||
  fail "the image does not build"
setting() { buildah inspect --type image --format "$1" "$image"; }
user=$(setting '{{.OCIv1.Config.User}}')
[ "${user%%:*}" != 0 ] && [ -n "$user" ] || fail "its user is '$user'"
[ "$(setting '{{index .OCIv1.Config.Entrypoint 0}}')" = tcgemm-server ] || fail "its entry point"
[ "$(setting '{{.Docker.Config.StopSignal}}')" = SIGTERM ] || fail "its signal"
container=$(buildah from "$image")
root=$(buildah mount "$container")

step "as user $user, process 1, on a read-only root, with $((limit_bytes >> 20)) MiB"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  group=/sys/fs/cgroup/tcgemm-image.$$ file=memory.max
else
  own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
  group=/sys/fs/cgroup/memory${own%/}/tcgemm-image.$$ file=memory.limit_in_bytes
fi
mkdir "$group"
echo "$limit_bytes" >"$group/$file"
cat >"$folder/enter.sh" <<'ENTER'
# enter.sh ROOT USER GROUP ENV... COMMAND...: the root read-only, and nothing else of this system.
root=$1 user=$2 group=$3; shift 3
echo $$ >"$group/cgroup.procs"
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero urandom random; do
  touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
done
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" --groups= "$root" env -i \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
ENTER
# The network is this machine's: any port.
unshare --mount --pid --fork --kill-child bash "$folder/enter.sh" "$root" "$user" "$group" \
  TCGEMM_LISTEN=127.0.0.1:0 TCGEMM_METRICS_LISTEN=127.0.0.1:0 tcgemm-server \
  >"$folder/ready" 2>"$folder/server.log" &
parent=$!
for _ in $(seq 300); do
  [ ! -s "$folder/ready" ] || break
  kill -0 "$parent" 2>/dev/null || fail "it ended"
  sleep 0.2
done
address=$(sed -n 's/^READY grpc=\([^ ,]*\).*/\1/p' "$folder/ready")
[ -n "$address" ] || fail "no READY line"
server=$(cat "/proc/$parent/task/$parent/children")
server=${server// /}
grep -qP "^Uid:\s+${user%%:*}\s+${user%%:*}\s" "/proc/$server/status" || fail "another user"
grep -qP '^CapEff:\s0{16}' "/proc/$server/status" || fail "it has capabilities"
grep -qP '^NSpid:.*\s1$' "/proc/$server/status" || fail "it is not process 1"
inside() {
  unshare --mount bash "$folder/enter.sh" "$root" "$user" "$group" "$@"
}
! inside touch /usr/local/x 2>/dev/null || fail "its root can be written"
inside tcgemm-client --server "$address" smoke | tail -n 1 || fail "smoke"
inside tcgemm-client --server "$address" --timeout 4s health || fail "health"
kill -TERM "$server"
code=0
wait "$parent" || code=$?
server=
[ "$code" -eq 0 ] || fail "SIGTERM ended it with $code"
tail -n 1 "$folder/server.log"
echo "all good"
