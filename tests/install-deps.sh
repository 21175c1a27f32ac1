#!/usr/bin/env bash
# Installs what the build and the tests need and do not find, with apt, as root or by sudo. Says so where it cannot.
# Does nothing, and needs no rights, where all is there. Further needs may be named: install-deps.sh COMMAND=PACKAGE...
set -euo pipefail
packages=()
command -v cc >/dev/null || packages+=(gcc libc6-dev) # the linker, and the C parts of ring
command -v redis-server >/dev/null || packages+=(redis-server)
command -v redis-cli >/dev/null || packages+=(redis-tools)
command -v curl >/dev/null || packages+=(curl)
command -v python3 >/dev/null || packages+=(python3)
python3 -c "import ensurepip, venv" 2>/dev/null || packages+=(python3-venv)
command -v chromium >/dev/null || packages+=(chromium fonts-dejavu-core) # the dashboard's tests look at it
command -v chromedriver >/dev/null || packages+=(chromium-driver)
if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then # metrics, alerts, dashboards
  if command -v apt-get >/dev/null; then
    packages+=(prometheus)
  else
    echo "prometheus is missing and there is no apt-get here: the tests of metrics, alerts and dashboards are skipped" >&2
  fi
fi
for further in "$@"; do
  command -v "${further%%=*}" >/dev/null || packages+=("${further#*=}")
done
[ ${#packages[@]} -eq 0 ] && exit 0
cannot() {
  echo "missing: ${packages[*]}; $1: install them by hand" >&2
  exit 1
}
command -v apt-get >/dev/null || cannot "there is no apt-get here"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || cannot "this is not root and there is no sudo"
  as_root=(sudo)
fi
# Debian starts a redis on port 6379 and a prometheus on 9090 when their packages are installed: the tests start their
# own, so keep those down.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
  trap '"${as_root[@]}" rm -f $policy' EXIT
  "${as_root[@]}" chmod +x $policy
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"; }
apt update
apt install -y --no-install-recommends "${packages[@]}"
