# One command each; `make` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run deps test test-fast incident model chaos floods attack bench bench-peers bench-growth bench-settings bench-cost bench-parts bench-scripts bench-nodes fuzz lint check-crates dist profiled fmt docs acceptance maintenance measure

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: ## build the service and serve on 127.0.0.1:5625, with an embedded node
	cargo run --locked --release

deps: ## install what the tests need and do not find (redis-server, openssl, Chromium and others; see tests/install-deps.sh)
	@tests/install-deps.sh

# Without Python the tests that need it are skipped; tests/install-deps.sh says which.
target/venv/stamp: tests/requirements.txt | deps
	@mkdir -p target/venv
	@if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then exit 0; fi; \
	python3 -m venv target/venv && target/venv/bin/pip install --quiet --disable-pip-version-check --requirement tests/requirements.txt && touch $@

test-fast: ## the tests that start no server, no browser and no simulation: under a minute once they are built
	cargo test --locked --lib --test tidy -- --skip sim:: --skip queue_model:: --skip crash_tests::
	cargo test --locked --test contract -- reference:: embedded::

# Without npm, or without the registry, the test that needs it is skipped.
target/node/stamp: tests/node/package.json | deps
	@mkdir -p target/node
	@if ! command -v npm >/dev/null; then exit 0; fi; \
	cp tests/node/package.json target/node/ && npm install --prefix target/node --no-fund --no-audit --silent && touch $@

# The simulation runs thousands of histories in the library's unit tests. Optimised, they take a third of the time, and the
# library five minutes of compiling: worth it for all of them, and not while one is being written.
OPTIMISED = --config 'profile.test.package.redlockd.opt-level=1'

test: deps target/venv/stamp target/node/stamp ## install what is missing, then run every test
	cargo test --locked --lib $(OPTIMISED)
	cargo test --locked --bins --examples --test '*'
	cargo test --locked --doc

incident: deps ## half an hour of failures in two minutes, and what pages, events, metrics, alerts and log said; then a rolling restart under 300 requests/s
	REDLOCKD_SCREENSHOTS=1 cargo test --locked --test browser incident:: -- --ignored --nocapture
	cargo build --locked --release
	REDLOCKD_BINARY=$(abspath $(REDLOCKD)) REDLOCKD_ROLLING_RATE=$(or $(RATE),300) \
	cargo test --locked --test it rolling:: -- --nocapture

model: ## check the models of the protocol within larger bounds than `make test` does (minutes)
	REDLOCKD_MODEL_IN_DEPTH=1 cargo test --locked --test model -- --nocapture --test-threads 1
	REDLOCKD_MODEL_IN_DEPTH=1 cargo test --locked --lib $(OPTIMISED) queue_model:: -- --nocapture --test-threads 1

chaos: deps ## real servers under faults, and plain Redlock under the same: make chaos SECONDS=600 SEED=1
	REDLOCKD_CHAOS_SECONDS=$(or $(SECONDS),60) REDLOCKD_CHAOS_SEED=$(or $(SEED),1) \
	cargo test --locked --test chaos -- --nocapture --test-threads 1 --include-ignored keeps_its plain_redlock_under

floods: ## 19,000 connections, half of them half-open, slow readers of every stream, floods of HTTP/2 frames (minutes): make floods CONNECTIONS=19000
	ulimit -n "$$(ulimit -Hn)" && REDLOCKD_FLOOD=$(or $(CONNECTIONS),19000) \
	cargo test --locked --test it -- access::floods:: access::http2:: --nocapture --test-threads 1

attack: ## plays each role of docs/threat-model.md against the service, all at a time: make attack SECONDS=3600 SEED=1
	REDLOCKD_ATTACK_SECONDS=$(or $(SECONDS),60) REDLOCKD_ATTACK_SEED=$(or $(SEED),1) \
	cargo test --locked --test it access::attack:: -- --nocapture --test-threads 10

fuzz: ## each fuzz target for a while, on stable without sanitizers; what it learns stays in fuzz/target: make fuzz SECONDS=60 TARGETS="names bodies"
	@cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz
	@for target in $(or $(TARGETS),names durations bodies headers settings access_file replies tokens queries callers published streams tickets); do \
	echo "== $$target"; \
	mkdir -p fuzz/target/corpus/$$target; \
	cargo +stable fuzz run -s none --fuzz-dir fuzz $$target fuzz/target/corpus/$$target fuzz/corpus/$$target -- \
	-max_total_time=$(or $(SECONDS),60) -max_len=4096 -timeout=10 || exit 1; done

# The benchmarks share what they run: the release binary, and the crate that measures it.
SPEED = target/speed/release/redlockd-speed
REDLOCKD = $(or $(CARGO_TARGET_DIR),target)/release/redlockd
.PHONY: speed
speed: deps
	cargo build --locked --release
	cargo build --locked --release --manifest-path benches/speed/Cargo.toml --target-dir target/speed

bench: speed ## how fast it is, beside its yardsticks, on servers of its own: make bench ROUNDS=5 SECONDS=2 (4 minutes)
	@$(SPEED) bench $(REDLOCKD) $(or $(ROUNDS),5) $(or $(SECONDS),2)

bench-peers: speed ## the same beside etcd, also with every node on the disk before it answers (4 minutes)
	@tests/install-deps.sh etcd=etcd-server
	@$(SPEED) peers $(REDLOCKD) $(or $(ROUNDS),5) $(or $(SECONDS),2)

bench-growth: speed ## what 100,000 held leases and 10,000 waiters change and weigh (3 minutes)
	cargo build --locked --release --bin redlockd --example waiters_memory
	@$(SPEED) growth $(REDLOCKD) $(or $(ROUNDS),3) $(or $(SECONDS),1)
	@$(SPEED) embedded $(REDLOCKD)
	@ulimit -n "$$(ulimit -Hn)" && $(dir $(REDLOCKD))examples/waiters_memory

bench-settings: speed ## settings that differ from the defaults, beside these in one run (3 minutes)
	@$(SPEED) settings $(REDLOCKD) $(or $(ROUNDS),5) $(or $(SECONDS),2)

bench-cost: speed ## instructions and writes of the service per cycle: what a noisy machine does not move (3 minutes)
	@tests/install-deps.sh strace=strace valgrind=valgrind
	@$(SPEED) cost $(REDLOCKD)

bench-parts: speed ## instructions of each part of the service alone, and cache misses; then of the whole by crate and module, of a build with names (7 minutes, and 20 to build)
	@tests/install-deps.sh valgrind=valgrind
	@nice $(SPEED) parts $(REDLOCKD)
	@nice benches/cache_misses.py $(REDLOCKD) $(SPEED)
	cargo build --locked --profile profiling --bin redlockd
	@nice benches/service_parts.py $(or $(CARGO_TARGET_DIR),target)/profiling/redlockd

bench-scripts: speed ## what the scripts of acquire and release cost a node, alone and 16 in a batch (half a minute)
	@$(SPEED) scripts $(REDLOCKD) $(or $(ROUNDS),5)

bench-nodes: ## instructions of redis-server for an acquire, a release and each of their parts: what a noisy machine does not move (6 minutes)
	@tests/install-deps.sh valgrind=valgrind
	@nice benches/node_instructions.py
	@nice benches/node_parts.py

# The crates apart are checked in the same directory, where most of what they depend on has been checked already.
lint: ## formatting, clippy, docs, scripts and licences, each without a warning
	cargo fmt --all --check
	cargo clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items
	@for script in .ci/run tests/*.sh examples/*.sh packaging/*.sh; do bash -n "$$script" || exit 1; done
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run tests/*.sh examples/*.sh packaging/*.sh; \
	else echo "shellcheck is not installed: skipped"; fi
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check licenses bans sources; \
	else echo "cargo-deny is not installed: skipped"; fi

check-crates: ## that the benchmarks and the fuzz targets compile, which `make lint` does not (5 minutes, with crates of their own)
	cargo check --locked --manifest-path benches/speed/Cargo.toml --target-dir target
	cargo check --locked --manifest-path fuzz/Cargo.toml --target-dir target

dist: ## target/dist: a static binary and a Debian package (with a profile), both started; licences of the crates, a bill of materials (CycloneDX), checksums
	packaging/packages.sh
	@packaging/dist.py target/dist
	@install -m 644 LICENSE README.md target/dist/
	@cd target/dist && rm -f SHA256SUMS && sha256sum -- * > SHA256SUMS && cat SHA256SUMS

profiled: deps ## target/profiled/redlockd: the release binary with profile-guided optimisation, a fifth less processor time (16 minutes)
	packaging/profiled.sh

fmt: ## format the code
	cargo fmt --all

docs: ## write the generated documents again: config/redlockd.toml, docs/settings.md, docs/limits.md
	REDLOCKD_WRITE_DOCUMENTS=1 cargo test --locked --test it documents

acceptance: deps ## 300 real curls over two instances, with a node, an instance and some of them killed (a minute)
	cargo build --locked --release
	tests/acceptance.py

maintenance: deps ## all nodes restarted, one replaced, an instance with yesterday's configuration, under the load of a build farm (a minute)
	cargo build --locked --release
	tests/maintenance.py $(REDLOCKD)

measure: deps target/venv/stamp ## the figures of docs/waiting.md and docs/command-line.md (minutes; on a quiet machine)
	cargo build --locked --release --bin redlockd --example handover --example waiters_memory
	cargo build --locked --release --manifest-path benches/peers/Cargo.toml --target-dir target/peers
	target/release/examples/handover 400 3
	target/release/examples/waiters_memory
	benches/run_beside_flock.py
