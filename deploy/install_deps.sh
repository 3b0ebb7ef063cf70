#!/usr/bin/env bash
# Installs what tcgemm needs from the distribution: Debian 12 or Ubuntu 24.04, as root or with sudo.
#   install_deps.sh [build|test]     build: to build and run (the default); test: also to test
# Does nothing when everything is there. Nothing CUDA: the GPU backend is built where nvcc is found.
set -euo pipefail

build=(g++ cmake ninja-build ccache git pkg-config ca-certificates
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  prometheus-cpp-dev libcivetweb-dev libdnnl-dev libcli11-dev libspdlog-dev nlohmann-json3-dev
  libssl-dev zlib1g-dev)
test=(libgtest-dev libgmock-dev librapidcheck-dev
  openssl iproute2 python3 python3-grpcio python3-protobuf python3-numpy python3-h2 python3-yaml
  python3-selenium
  prometheus docker-compose python3-jsonschema python3-kubernetes systemd dpkg-dev file groff-base
  clang clang-format clang-tidy
  libomp-dev libclang-rt-dev)  # clang does not see gcc's omp.h; its sanitizers and libFuzzer

release=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown} ${VERSION_ID:-}" || true)
# A browser for the status page. Ubuntu has it as a snap alone, and its test is skipped there.
[ "$release" != 'debian 12' ] || test+=(chromium chromium-driver)

case ${1:-build} in
  build) wanted=("${build[@]}") ;;
  test) wanted=("${build[@]}" "${test[@]}") ;;
  *) echo "usage: install_deps.sh [build|test]" >&2; exit 2 ;;
esac

if ! command -v apt-get >/dev/null; then
  echo "install_deps.sh: no apt-get here; install these by hand: ${wanted[*]}" >&2
  exit 1
fi

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

case $release in
  'debian 12' | 'ubuntu 24.04') ;;
  *)
    echo "install_deps.sh: $release is neither Debian 12 nor Ubuntu 24.04;" \
      "install these by hand: ${missing[*]}" >&2
    exit 1
    ;;
esac

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps.sh: run as root, or install sudo" >&2
    exit 1
  fi
  as_root=(sudo)
fi

# Mirrors and locks fail now and then.
retry() {
  local attempt
  for attempt in 1 2 3; do
    "$@" && return 0
    [ "$attempt" -eq 3 ] || { echo "install_deps.sh: trying again: $*" >&2; sleep 5; }
  done
  return 1
}

echo "install_deps.sh: installing ${missing[*]}" >&2
options=(-qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
retry "${as_root[@]}" apt-get "${options[@]}" update
# An installation that was interrupted is finished first: apt refuses to go on otherwise.
retry "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --configure -a >/dev/null
retry "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get "${options[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null

# Of the prometheus package only promtool is wanted, not its daemon.
if [[ " ${missing[*]} " == *' prometheus '* && -d /run/systemd/system ]]; then
  "${as_root[@]}" systemctl disable --quiet --now prometheus.service || true
fi
