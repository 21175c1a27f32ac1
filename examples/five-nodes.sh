#!/usr/bin/env bash
# Starts five independent Redis masters on this machine and redlockd over them, to try it: the same as on five machines,
# except that they fail together. Stops everything that it started when it ends (Ctrl-C).
#
#   examples/five-nodes.sh [further options of `redlockd serve`]
#   REDLOCKD=path/to/redlockd examples/five-nodes.sh
#
# Needs redis-server, redis-cli and, unless REDLOCKD is set, cargo.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
ports=(7101 7102 7103 7104 7105)

for tool in redis-server redis-cli setsid; do
  command -v "$tool" >/dev/null || { echo "five-nodes: $tool is missing; 'make deps' installs it" >&2; exit 1; }
done
if [ -z "${REDLOCKD:-}" ]; then
  cargo build --release --manifest-path "$root/Cargo.toml"
  REDLOCKD=${CARGO_TARGET_DIR:-$root/target}/release/redlockd
fi

dir=$(mktemp -d)
pids=()
stop() {
  trap - EXIT HUP INT TERM
  # redlockd first (it was started last), so that its last releases reach the nodes.
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
    kill "${pids[i]}" 2>/dev/null || continue
    wait "${pids[i]}" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap stop EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

nodes=()
for port in "${ports[@]}"; do
  if redis-cli -h 127.0.0.1 -p "$port" ping >/dev/null 2>&1; then
    echo "five-nodes: something answers on port $port already" >&2
    exit 1
  fi
  mkdir "$dir/$port"
  # No persistence: redlockd relies on none. A node that restarts has no vote until no lease can depend on what it forgot.
  # `setsid`: Ctrl-C reaches only this script, which stops one process after the other.
  setsid redis-server --port "$port" --bind 127.0.0.1 --dir "$dir/$port" --save '' --appendonly no \
    --maxmemory-policy noeviction --logfile "$dir/$port/log" &
  pids+=($!)
  nodes+=(--node "node-$port=redis://127.0.0.1:$port")
done
for i in "${!ports[@]}"; do
  for ((try = 0; ; try++)); do
    [ "$(redis-cli -h 127.0.0.1 -p "${ports[i]}" ping 2>/dev/null || true)" = PONG ] && break
    if ((try == 100)) || ! kill -0 "${pids[i]}" 2>/dev/null; then
      echo "five-nodes: the redis-server on port ${ports[i]} does not start:" >&2
      tail -n 3 "$dir/${ports[i]}/log" >&2 || true
      exit 1
    fi
    sleep 0.1
  done
done

# Once for new nodes: without it they count as wiped, and have no vote for some five minutes.
"$REDLOCKD" init "${nodes[@]}"
setsid "$REDLOCKD" serve "${nodes[@]}" "$@" &
pids+=($!)
wait "${pids[-1]}"
