#!/usr/bin/env bash
# Builds the binary with profile-guided optimisation, into target/profiled/redlockd: first one that counts what it executes, which then
# serves the load of benches/profile_load.py, and with its counts the other (https://doc.rust-lang.org/rustc/profile-guided-optimization.html).
# Needs redis-server, Python 3, and llvm-profdata of at least the compiler's LLVM (rustup component add llvm-tools, or apt): exits with 3
# if one is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/target/profiled
target=$(rustc -vV | sed -n 's/^host: //p')
llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
for profdata in "$(rustc --print sysroot)/lib/rustlib/$target/bin/llvm-profdata" "llvm-profdata-$llvm" llvm-profdata ''; do
  [ -z "$profdata" ] || ! command -v "$profdata" >/dev/null || break
done
[ -n "$profdata" ] || { echo "there is no llvm-profdata: rustup component add llvm-tools, or apt-get install llvm-$llvm" >&2; exit 3; }
for program in redis-server python3; do
  command -v $program >/dev/null || { echo "there is no $program" >&2; exit 3; }
done

# Names of functions depend on the settings of the build, and counts are found by name: only the flags may differ.
build() { # DIRECTORY FLAG
  CARGO_PROFILE_RELEASE_STRIP=none RUSTFLAGS=$2 \
    cargo build --locked --release --bin redlockd --target "$target" --target-dir "$out/$1"
}
# Cargo does not see that counts differ from those of an earlier run.
rm -rf "$out/counts" "$out/optimised"
build counting "-Cprofile-generate=$out/counts"
benches/profile_load.py "$out/counting/$target/release/redlockd"
"$profdata" merge -o "$out/redlockd.profdata" "$out/counts"
build optimised "-Cprofile-use=$out/redlockd.profdata"

hashes() { grep -oE '17h[0-9a-f]{16}E' | sort -u; }
counted=$("$profdata" show --all-functions "$out/redlockd.profdata" | hashes)
built=$(nm "$out/optimised/$target/release/redlockd" | hashes)
common=$(comm -12 <(echo "$counted") <(echo "$built") | wc -l)
[ "$common" -gt 1000 ] || { echo "only $common functions of the binary were counted: their names differ between the builds" >&2; exit 1; }
strip -o "$out/redlockd" "$out/optimised/$target/release/redlockd"
echo "$out/redlockd: the counts of $common functions were used"
