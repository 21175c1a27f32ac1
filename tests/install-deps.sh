#!/usr/bin/env bash
# Installs what the build and the tests need and do not find: on Debian and Ubuntu with apt-get, as root or by sudo.
# Elsewhere it says in one line per program what is missing. It fails only without a program that no test run can do
# without; for the others it names the tests that are skipped. Nothing is done, and no right is needed, if all is there.
# Further needs may be named: install-deps.sh COMMAND=PACKAGE...
set -euo pipefail

packages=() # to be installed
required=() # commands without which most tests fail
skipped=()  # what is skipped, and why
has() { command -v "$1" >/dev/null; }
# require COMMAND PACKAGE...
require() {
  has "$1" || { required+=("$1"); packages+=("${@:2}"); }
}
# optional COMMAND 'TESTS' PACKAGE...
optional() {
  has "$1" || { skipped+=("$1 is missing: $2 is skipped"); packages+=("${@:3}"); }
}

require cc gcc libc6-dev # the linker, and the C parts of the crate `ring`
require redis-server redis-server
require redis-cli redis-tools
require curl curl
require jq jq
require openssl openssl
require setsid util-linux
require script bsdutils # a terminal, for the tests of `redlockd run`
for further in "$@"; do
  require "${further%%=*}" "${further#*=}"
done
if ! has python3 || ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  skipped+=("python3 with venv is missing: the tests with schemathesis and redlock-py are skipped")
  packages+=(python3 python3-venv)
fi
optional nginx 'the recipe for nginx (tests/it/fencing.rs)' nginx-light
optional caddy 'the recipe for Caddy (tests/it/fencing.rs)' caddy
optional mariadbd 'the recipe for MariaDB (tests/it/fencing.rs)' mariadb-server
optional psql 'the recipe for PostgreSQL (tests/it/fencing.rs)' postgresql
optional sqlite3 'the recipe for SQLite (tests/it/fencing.rs)' sqlite3
optional busybox 'the shell of Alpine (tests/it/recipes.rs, fencing.rs)' busybox
optional node 'the Node.js client (tests/it/clients.rs, sets.rs)' nodejs
optional npm 'what needs packages of npm (tests/it/interop.rs, hooks/verify.rs)' npm
optional logrotate 'the rotation of the audit log (tests/it/cli_packages.rs)' logrotate
optional systemd-analyze 'the check of the unit (tests/it/cli_packages.rs)' systemd
optional dpkg-deb 'the Debian package (tests/it/cli_packages.rs)' dpkg
optional webhook 'the recipe for the program webhook (tests/it/workflows.rs)' webhook
optional prometheus 'tests/it/prometheus.rs' prometheus
optional promtool 'the check of metrics and alerts (tests/it/metrics.rs, prometheus.rs)' prometheus
# Ubuntu's packages of Chromium only install a snap, which needs a running snapd: there it is used if it is present.
# shellcheck source=/dev/null
if [ "$(. /etc/os-release 2>/dev/null && echo "${ID:-}")" = ubuntu ]; then
  for browser in chromium chromedriver; do
    optional "$browser" 'tests/browser (on Ubuntu apt-get has only a snap of Chromium)'
  done
else
  optional chromium tests/browser chromium fonts-dejavu-core
  optional chromedriver tests/browser chromium-driver
fi

say_skipped() {
  for line in "${skipped[@]}"; do echo "$line" >&2; done
}
stop() {
  say_skipped
  [ ${#required[@]} -eq 0 ] && exit 0
  echo "missing: ${required[*]}; $1: install them by hand" >&2
  exit 1
}
if [ ${#packages[@]} -eq 0 ]; then
  say_skipped
  exit 0
fi
has apt-get || stop "there is no apt-get here"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  has sudo || stop "this is not root and there is no sudo"
  as_root=(sudo)
fi
# Debian starts a redis on port 6379 and a prometheus on 9090 when their packages are installed. The tests start their
# own, so this keeps those down.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
  trap '"${as_root[@]}" rm -f $policy' EXIT
  "${as_root[@]}" chmod +x $policy
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"; }
apt update
apt install -y --no-install-recommends "${packages[@]}"
