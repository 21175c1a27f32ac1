#!/usr/bin/env bash
# Builds what is distributed, into target/dist: a static binary, and a Debian package with the unit. Then starts both in bare
# directories: the static one in a root without any other file (as root), and the package's unpacked.
#
#   packaging/packages.sh            builds the static binary for musl if its target is installed, else with a static glibc; and the
#                                package's for glibc, with a profile if there is what profiled.sh needs
#   packaging/packages.sh BINARY     takes this one for both
#   DIST=directory               writes there instead
#   COMPRESSION=none             packs without compressing, as a test does
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
machine=$(uname -m)
dist=${DIST:-$PWD/target/dist}
work=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
mkdir -p "$dist"

if [ $# -gt 0 ]; then
  binary=$1 packaged=$1
else
  target=$machine-unknown-linux-musl
  if rustup target list --installed 2>/dev/null | grep -x "$target" >/dev/null && command -v musl-gcc >/dev/null; then
    CC=musl-gcc cargo build --locked --release --target "$target"
  else
    echo "the target $target or musl-gcc is not installed: glibc is linked statically; names are then resolved with the" >&2
    echo "libraries of the machine that runs it, so use addresses, or a machine with glibc" >&2
    target=$machine-unknown-linux-gnu
    RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked --release --target "$target"
  fi
  binary=target/$target/release/redlockd
  status=0
  packaging/profiled.sh || status=$?
  case $status in
    0) packaged=target/profiled/redlockd ;;
    3) echo "so the package has a binary without a profile" >&2
       cargo build --locked --release
       packaged=target/release/redlockd ;;
    *) exit "$status" ;;
  esac
fi
static="$dist/redlockd-$version-linux-$machine"
install -m 755 "$binary" "$static"
strip "$static" 2>/dev/null || true

# starts DATA COMMAND...: it serves with its state in DATA, grants a lock and stops. DATA is nobody else's: a server that runs
# there, or an earlier one that was killed, would keep this one from starting or from granting.
starts() {
  data=$1
  shift
  : > "$work/out"
  "$@" serve --listen 127.0.0.1:0 --data-dir "$data" > "$work/out" 2> "$work/err" &
  server=$!
  for _ in $(seq 600); do
    url=$(sed -n 's/.*listens on //p' "$work/out")
    [ -z "$url" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  [ -n "$url" ] || { cat "$work/err" >&2; echo "$* does not start" >&2; exit 1; }
  "$static" run --wait 1m --url "$url" dist/test -- true
  kill -TERM "$server"
  wait "$server"
  server=''
}

# ldd exits with 0 for a static executable that is position-independent, as those for musl are.
# Not by a pipe into `grep -q`: it ends at the first match, ldd is then ended by SIGPIPE, and with pipefail a dynamic one is static.
is_static() { # BINARY
  case "$(ldd "$1" 2>/dev/null)" in *'=>'*) false ;; esac
}
mkdir -p "$work/root"
cp "$static" "$work/root/redlockd"
if is_static "$static" && [ "$(id -u)" -eq 0 ]; then
  starts /data env -i "$(command -v chroot)" "$work/root" /redlockd
else
  starts "$work/root/data" env -i "$work/root/redlockd"
fi
echo "$static: starts in a bare directory (static: $(is_static "$static" && echo yes || echo no))"

if ! command -v dpkg-deb >/dev/null; then
  echo "dpkg-deb is not installed: no Debian package is built" >&2
  exit 0
fi
tree=$work/package
install -D -m 755 "$packaged" "$tree/usr/bin/redlockd"
strip "$tree/usr/bin/redlockd" 2>/dev/null || true
install -d "$tree/lib/systemd/system" "$tree/usr/share/man/man1" "$tree/usr/share/bash-completion/completions" "$tree/DEBIAN"
sed 's|/usr/local/bin/|/usr/bin/|; /^# The service under systemd/,/^$/d' packaging/systemd/redlockd.service \
  > "$tree/lib/systemd/system/redlockd.service"
install -D -m 644 packaging/logrotate/redlockd "$tree/etc/logrotate.d/redlockd"
install -d "$tree/etc/redlockd"
"$static" config default > "$tree/etc/redlockd/redlockd.toml"
chmod 600 "$tree/etc/redlockd/redlockd.toml"    # it may get the nodes' passwords
"$static" man | gzip -9n > "$tree/usr/share/man/man1/redlockd.1.gz"
"$static" completions bash > "$tree/usr/share/bash-completion/completions/redlockd"
install -D -m 644 -t "$tree/usr/share/redlockd" clients/python/redlockd.py clients/node/redlockd.mjs
install -D -m 644 LICENSE "$tree/usr/share/doc/redlockd/copyright"
printf '/etc/redlockd/redlockd.toml\n/etc/logrotate.d/redlockd\n' > "$tree/DEBIAN/conffiles"
depends=''
is_static "$packaged" || depends="Depends: libc6 (>= $(ldd --version | sed -n '1s/.* //p'))"
sed '/^$/d' > "$tree/DEBIAN/control" <<CONTROL
Package: redlockd
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: the authors of redlockd <redlockd@localhost>
$depends
Suggests: redis-server
Section: admin
Priority: optional
Description: distributed locks over HTTP, on independent Redis masters
 Redlock with fencing tokens, queues without polling, and a command line that
 takes the place of flock. The service is installed and not started:
 edit /etc/redlockd/redlockd.toml, then systemctl enable --now redlockd.
CONTROL
package=$dist/redlockd_${version}_$(dpkg --print-architecture).deb
dpkg-deb --root-owner-group "-Z${COMPRESSION:-xz}" --build "$tree" "$package" >/dev/null
dpkg-deb -x "$package" "$work/unpacked"
if command -v systemd-analyze >/dev/null; then
  sed "s|/usr/bin/|$work/unpacked/usr/bin/|" "$work/unpacked/lib/systemd/system/redlockd.service" > "$work/redlockd.service"
  said=$(systemd-analyze verify --man=no "$work/redlockd.service" 2>&1 | grep redlockd.service: || true)
  [ -z "$said" ] || { echo "$said" >&2; exit 1; }
fi
REDLOCKD_CONFIG=$work/unpacked/etc/redlockd/redlockd.toml "$work/unpacked/usr/bin/redlockd" config check >/dev/null
starts "$work/data" env -i "$work/unpacked/usr/bin/redlockd"
echo "$package: its unit is read, its configuration is good, its binary starts"
