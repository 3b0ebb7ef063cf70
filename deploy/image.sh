#!/usr/bin/env bash
# The two halves of an image; deploy/Dockerfile calls them, for each of its targets.
#   image.sh build [CMAKE-FLAG...]   in the build stage: the binaries, and the packages they load
#   image.sh install                 in the image: those packages, the binaries, the user
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
binaries=(build/release/bin/tcgemm-server build/release/bin/tcgemm-client)

# The packages that own the shared libraries of the binaries: the list follows the distribution and
# the architecture. The loader's names are links, and a package may know a file by its path before
# /usr was merged.
packages() {
  local library real
  ldd "${binaries[@]}" | awk '$2 == "=>" {print $3}' | sort -u | while read -r library; do
    real=$(realpath "$library")
    { dpkg-query -S "$real" 2>/dev/null || dpkg-query -S "${real#/usr}"; } | cut -d: -f1
  done | sort -u
}

case ${1:-} in
  build)
    shift
    cmake --preset release "$@"
    cmake --build --preset release --target tcgemm-server tcgemm-client
    strip "${binaries[@]}"
    packages >packages.txt
    ;;
  install)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    xargs apt-get install -y --no-install-recommends <packages.txt
    rm -rf /var/lib/apt/lists/*
    install -m 0755 "${binaries[@]}" /usr/local/bin
    groupadd --gid 10001 tcgemm
    useradd --uid 10001 --gid 10001 --no-create-home --no-log-init --home-dir /nonexistent \
      --shell /usr/sbin/nologin tcgemm
    ;;
  *)
    echo "usage: image.sh build [CMAKE-FLAG...] | install" >&2
    exit 2
    ;;
esac
