# `make help` lists what there is. Everything but `make bench` uses one profile: a second one compiles all dependencies
# again. So does a selection of packages (`--package`), whose dependencies have fewer features than those of the whole
# workspace: programs are chosen with `--bin`.

.DEFAULT_GOAL := help
SHELL := /bin/bash
# rustup and scripts/install-helm.sh install there; a fresh shell may not know it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH):$(HOME)/.cache/kindbox/bin

.PHONY: help install lint test model mutants demo dev torture bench e2e

help: ## Lists the targets
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):[^#]*## ?/  make \1\t/' | expand -t 18

install: ## Installs what is missing: compiler, libraries, Redis, Postgres, Java, Kafka (Debian, Ubuntu)
	@scripts/install.sh

lint: install ## Checks formatting, clippy, licenses and sources of dependencies, and the chart
	@scripts/lint.sh

test: install ## Runs all tests, against real servers
	cargo test --workspace --no-fail-fast

model: ## Looks at every state of the protocol's model, and at what breaks without each of its rules
	cargo test --package model -- --nocapture

mutants: install ## Breaks each rule of the promise on purpose: its scenario must see it
	cargo test --workspace --features coupon/mutants --test scenarios -- --include-ignored --nocapture --test-threads=1 mutants::

demo: install ## Sells a campaign out on this machine and audits the result
	cargo run --bin coupon -- --log warn,librdkafka=error demo

dev: install ## Runs the whole system on this machine until Ctrl-C
	cargo run --bin coupon -- dev -f examples/flash-sale.yaml

torture: install ## Breaks everything at random while clients claim, and judges the answers (SEEDS=1..3, SECONDS=60)
	cargo build --bin intake --bin worker --bin torture
	cargo run --bin torture -- --log error,librdkafka=off,rdkafka=off --seeds $(or $(SEEDS),1..3) --seconds $(or $(SECONDS),60)$(if $(RESUME), --resume $(RESUME))

bench: install ## Measures the system side by side with the least it could do (QUICK=1: a few minutes); see docs/performance.md
	cargo build --release --bin intake --bin worker --bin bench
	cargo run --release --quiet --bin bench -- run $(if $(QUICK),--quick,--page docs/performance.md)

e2e: install ## Installs the chart into a kind cluster and tests it there (KEEP=1 leaves the cluster)
	@e2e/run.sh
