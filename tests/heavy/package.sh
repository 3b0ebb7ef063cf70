#!/usr/bin/env bash
# The packages on a bare system of this machine's release, booted with systemd: they install, the
# hardened service serves, restarts, upgrades and drains, and they go without a trace. Needs root,
# debootstrap, systemd-nspawn and the distribution's archive; about two minutes.
#   package.sh BUILD_DIR     a finished build
set -euo pipefail

build=$(cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ "$(id -u)" -eq 0 ] || { echo "package.sh: needs root, to change the root folder" >&2; exit 1; }
for tool in debootstrap systemd-nspawn; do
  command -v "$tool" >/dev/null ||
    { echo "package.sh: needs $tool (packages debootstrap, systemd-container)" >&2; exit 1; }
done

folder=$(mktemp -d)
root=$folder/root
trap 'rm -rf --one-file-system "$folder"' EXIT

# quietly LOG COMMAND...: its output only if it fails.
quietly() {
  local log=$folder/$1.log
  shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
}
step() { printf '== %s\n' "$*"; }

step "packing"
cd "$build"
quietly cpack cpack -G DEB -B "$folder/packed"

step "a bare system"
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
quietly debootstrap debootstrap --variant=minbase "$codename" "$root"
rm -f "$root/etc/apt/sources.list"
for file in sources.list sources.list.d apt.conf.d trusted.gpg.d; do
  [ ! -e "/etc/apt/$file" ] || cp -aL "/etc/apt/$file" "$root/etc/apt/"
done
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
mkdir "$root/packages"
cp "$folder"/packed/tcgemm-server_*.deb "$root/packages/server.deb"
cp "$folder"/packed/tcgemm-client_*.deb "$root/packages/client.deb"

step "installing"
inside=(chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive)
quietly update "${inside[@]}" apt-get -qq update
quietly install "${inside[@]}" apt-get -qq install -y --no-install-recommends \
  systemd systemd-sysv dbus procps /packages/server.deb /packages/client.deb
"${inside[@]}" id tcgemm

step "as a service"
# The network is this machine's: any port, and budgets for a small one.
sed -i 's/^# pinned-bytes.*/pinned-bytes = "64MiB"/; s/^# queue-bytes.*/queue-bytes = "300MiB"/
  s/:50051"/:0"/; s/:9464"/:0"/' "$root/etc/tcgemm/tcgemm.toml"
install -m 0755 "$here/service_probe.sh" "$root/packages/probe.sh"
cat >"$root/etc/systemd/system/probe.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/sh -c 'exec /packages/probe.sh >/packages/probe.out 2>&1'
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../probe.service "$root/etc/systemd/system/multi-user.target.wants/probe.service"
timeout 300 systemd-nspawn -D "$root" --boot --register=no --keep-unit </dev/null \
  >"$folder/boot.log" 2>&1 || { tail -n 20 "$folder/boot.log"; echo "it did not boot and end"; }
cat "$root/packages/probe.out"
[ "$(tail -n 1 "$root/packages/probe.out")" = 'all good' ]
