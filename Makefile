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

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: release
release: ## Build the release binary
	cargo build --release --package berth

.PHONY: up
up: release ## Place a batch on a simulated fleet and print the decisions
	$(BERTH) demo

.PHONY: test
test: tools check instructions ## Run every check that a change must pass

.PHONY: check
check: nextest
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo xtask tidy
	cargo nextest run --workspace
	cargo test --doc --workspace
	# The optimised engine must decide as the debug one does; the test holds the digest.
	cargo nextest run --release --package berth-engine --test digest

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
bench: release ## Measure the engine at 10,000 and 100,000 nodes
	$(BERTH) bench engine --nodes 10000
	$(BERTH) bench engine --nodes 100000

.PHONY: soak
soak: nextest ## Run the engine's property tests with many more cases
	PROPTEST_CASES=20000 cargo nextest run --release --package berth-engine

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: lint
lint: ## Check format, lints and house rules without running tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo xtask tidy

.PHONY: deny
deny: ## Check licences, banned crates and sources (needs cargo-deny)
	cargo deny check licenses bans sources

.PHONY: tools
tools: nextest valgrind gungraun-runner ## Install what the tests need, where it is missing

.PHONY: nextest
nextest:
	@command -v cargo-nextest >/dev/null || cargo install --locked cargo-nextest

.PHONY: valgrind
valgrind:
	@if command -v valgrind >/dev/null; then exit 0; fi
	as_root=
	if [ "$$(id -u)" -ne 0 ]; then as_root='sudo -n'; fi
	export DEBIAN_FRONTEND=noninteractive
	$$as_root apt-get install -y valgrind ||
		{ $$as_root apt-get update && $$as_root apt-get install -y valgrind; } ||
		{ echo 'valgrind is missing and could not be installed: install it by hand' >&2; exit 1; }

# The runner refuses a library of another version, so it follows the lock file.
.PHONY: gungraun-runner
gungraun-runner:
	@wanted=$$(awk '/^name = "gungraun"$$/ { getline; gsub(/"/, ""); print $$3 }' Cargo.lock)
	if [ -z "$$wanted" ]; then echo 'Cargo.lock does not name gungraun' >&2; exit 1; fi
	found=$$(gungraun-runner --version 2>/dev/null || true)
	if [ "$$found" != "gungraun-runner $$wanted" ]; then
		cargo install --locked --force --version "$$wanted" gungraun-runner
	fi
