#!/bin/bash
# All checks that need no server. Fails at the first one that does.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${KINDBOX_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/kindbox}/bin"

step() {
    echo "lint: $*"
    "$@"
}

# The feature that breaks the promise on purpose (campaign::mutant) is on only where a command line names it.
no_mutants() {
    local found
    found=$(cargo tree --workspace --edges normal,build --prefix none --format '{p} {f}' | grep -w mutants;
        grep -rnE -- '--all-features|mutants' Dockerfile charts) || true # nothing found is what is wanted
    if [ -n "$found" ]; then
        echo "lint: a release would have the mutants: $found" >&2
        return 1
    fi
}

step cargo fmt --all --check
step no_mutants
step cargo clippy --workspace --all-targets --features e2e/cluster -- -D warnings
step cargo clippy --workspace --all-targets --features campaign/mutants,coupon/mutants -- -D warnings

if ! command -v cargo-deny >/dev/null; then
    echo "lint: installing cargo-deny (some minutes, once)"
    # Its own target folder goes away afterwards; the tool goes to ~/.cargo/bin.
    env -u CARGO_TARGET_DIR cargo install --locked --quiet cargo-deny
fi
step cargo deny --all-features check bans licenses sources
# The advisory database is a repository on GitHub, which not every machine can reach.
if cargo deny fetch db >/dev/null 2>&1; then
    step cargo deny --all-features check advisories
else
    echo "lint: SKIPPED cargo deny check advisories: the advisory database cannot be fetched from here"
fi

# Without values the chart refuses to be rendered: it cannot know where the servers are.
for values in charts/coupon/values-dev.yaml charts/coupon/tests/*.yaml; do
    step helm lint --strict --quiet charts/coupon --values "$values"
done
step diff --recursive crds charts/coupon/files/crds
