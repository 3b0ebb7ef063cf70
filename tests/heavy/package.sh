#!/usr/bin/env bash
# The packages on a bare system of this machine's release: they install, the service's command line
# serves and drains as the service's user, an upgrade keeps the configuration, and they go without a
# trace. Needs root, debootstrap and the distribution's archive; about two minutes.
#   package.sh BUILD_DIR     a finished build
set -euo pipefail

build=$(cd "$1" && pwd)
[ "$(id -u)" -eq 0 ] || { echo "package.sh: needs root, to change the root folder" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "package.sh: needs debootstrap" >&2; exit 1; }

folder=$(mktemp -d)
root=$folder/root
# Unmounts and removes, whatever happened.
clean_up() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  for mount in "$root/proc" "$root/dev/null" "$root/dev/urandom"; do
    ! mountpoint -q "$mount" || umount "$mount"
  done
  rm -rf --one-file-system "$folder"
}
trap clean_up EXIT
server=

step() { printf '== %s\n' "$*"; }
fail() { echo "package.sh: $*" >&2; exit 1; }
# An array, not a function: in the background a function is a shell, and signals stop there.
inside=(chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive)

step "packing"
(cd "$build" && cpack -G DEB -B "$folder/packed" >"$folder/cpack.log" 2>&1) ||
  { cat "$folder/cpack.log"; exit 1; }

step "a bare system"
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
debootstrap --variant=minbase "$codename" "$root" >"$folder/debootstrap.log" ||
  { tail "$folder/debootstrap.log"; exit 1; }
rm -f "$root/etc/apt/sources.list"
for file in sources.list sources.list.d apt.conf.d trusted.gpg.d; do
  [ ! -e "/etc/apt/$file" ] || cp -aL "/etc/apt/$file" "$root/etc/apt/"
done
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
mount -t proc proc "$root/proc"
for device in null urandom; do
  [ -e "$root/dev/$device" ] || touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/packages"
cp "$folder"/packed/tcgemm-server_*.deb "$root/packages/server.deb"
cp "$folder"/packed/tcgemm-client_*.deb "$root/packages/client.deb"

step "installing"
"${inside[@]}" apt-get -qq update
"${inside[@]}" apt-get -qq install -y --no-install-recommends -o Dpkg::Use-Pty=0 \
  /packages/server.deb /packages/client.deb >"$folder/apt.log" 2>&1 ||
  { tail -30 "$folder/apt.log"; exit 1; }
"${inside[@]}" id tcgemm

step "serving, as the service's user with the service's command line"
sed -i 's/^# pinned-bytes.*/pinned-bytes = "64MiB"/; s/^# queue-bytes.*/queue-bytes = "300MiB"/
  s/:50051"/:0"/; s/:9464"/:0"/' "$root/etc/tcgemm/tcgemm.toml"
unit=$root/usr/lib/systemd/system/tcgemm-server.service
command=$(sed -n 's/^ExecStart=//p' "$unit")
mkdir -m 0750 "$root/run/tcgemm"
"${inside[@]}" chown tcgemm:tcgemm /run/tcgemm
# shellcheck disable=SC2086  # a command and its flag
"${inside[@]}" setpriv --reuid tcgemm --regid tcgemm --clear-groups --no-new-privs \
  --bounding-set=-all $command >"$folder/ready" 2>"$folder/log" &
server=$!
for _ in $(seq 300); do
  [ ! -s "$folder/ready" ] || break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
grep -q '^READY ' "$folder/ready" || { cat "$folder/log"; fail "it did not get ready"; }
cat "$folder/ready"
"${inside[@]}" tcgemm-client --server unix:/run/tcgemm/tcgemm.sock smoke | tail -n 1
kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
tail -n 1 "$folder/log"
[ "$status" -eq 0 ] || fail "the server ended with $status"

step "upgrading: the configuration stays"
"${inside[@]}" dpkg --install /packages/server.deb >"$folder/dpkg.log" 2>&1 ||
  { cat "$folder/dpkg.log"; exit 1; }
grep -q '^pinned-bytes = "64MiB"' "$root/etc/tcgemm/tcgemm.toml" || fail "it was overwritten"

step "removing: binaries go, the configuration stays; purging: that goes too"
"${inside[@]}" dpkg --remove tcgemm-server tcgemm-client >/dev/null
[ -e "$root/etc/tcgemm/tcgemm.toml" ] || fail "the configuration is gone"
"${inside[@]}" dpkg --purge tcgemm-server tcgemm-client >/dev/null
left=$(find "$root" -xdev -name '*tcgemm*' -not -path "$root/proc/*" -not -path "$root/run/*")
[ -z "$left" ] || fail "left behind: $left"
echo "package.sh: all good"
