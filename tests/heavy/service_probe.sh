#!/usr/bin/env bash
# Inside the system that package.sh boots: the service as systemd runs it. Ends with "all good".
set -euo pipefail
trap 'systemctl poweroff' EXIT

fail() { echo "FAILED: $*"; journalctl --no-pager -u tcgemm-server | tail -n 30; exit 1; }
# expect PROPERTY VALUE: waits until systemd says so.
expect() {
  for _ in $(seq 100); do
    [ "$(systemctl show -p "$1" --value tcgemm-server)" != "$2" ] || return 0
    sleep 0.2
  done
  fail "$1 is $(systemctl show -p "$1" --value tcgemm-server), not $2"
}
ready() {
  for _ in $(seq 100); do
    tcgemm-client --server unix:/run/tcgemm/tcgemm.sock --timeout 1s health >/dev/null 2>&1 &&
      return 0
    sleep 0.2
  done
  fail "it does not serve"
}

echo "- it is neither started nor enabled by its installation"
expect ActiveState inactive
[ "$(systemctl is-enabled tcgemm-server || true)" = disabled ] || fail "it is enabled"

echo "- hardened, it serves"
systemctl enable --now tcgemm-server
ready
tcgemm-client --server unix:/run/tcgemm/tcgemm.sock smoke | tail -n 1
process=$(systemctl show -p MainPID --value tcgemm-server)
for line in 'CapEff:\s0{16}' 'NoNewPrivs:\s1' 'Seccomp:\s2'; do
  grep -qP "^$line" "/proc/$process/status" || fail "/proc/$process/status has no $line"
done
[ "$(stat -c '%U %a' /run/tcgemm/tcgemm.sock)" = 'tcgemm 770' ] || fail "the socket's mode"

echo "- killed, it comes back"
kill -KILL "$process"
expect NRestarts 1
ready

echo "- an upgrade restarts it, and keeps the configuration"
dpkg --install /packages/server.deb >/dev/null
ready
[ "$(systemctl show -p MainPID --value tcgemm-server)" != "$process" ] || fail "not restarted"
grep -q '^pinned-bytes = "64MiB"' /etc/tcgemm/tcgemm.toml || fail "the configuration changed"

echo "- stopped, it drains"
systemctl stop tcgemm-server
expect Result success
journalctl --no-pager -u tcgemm-server | grep -q 'ended: admitted' || fail "no last line"

echo "- a wrong configuration is tried once"
echo 'nonsense = 1' >>/etc/tcgemm/tcgemm.toml
systemctl start tcgemm-server
expect ActiveState failed
expect ExecMainStatus 2
sleep 7  # longer than RestartSec
expect NRestarts 0

echo "- removed and purged, it leaves nothing"
sed -i '/^nonsense/d' /etc/tcgemm/tcgemm.toml
systemctl reset-failed tcgemm-server
systemctl start tcgemm-server
ready
dpkg --remove tcgemm-server tcgemm-client >/dev/null
! pgrep -x tcgemm-server >/dev/null || fail "it still runs"
[ -e /etc/tcgemm/tcgemm.toml ] || fail "removal took the configuration"
dpkg --purge tcgemm-server >/dev/null
left=$(find / -xdev -name '*tcgemm*' -not -path '/proc/*')
[ -z "$left" ] || fail "left behind: $left"
echo "all good"
