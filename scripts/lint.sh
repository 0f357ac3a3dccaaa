#!/bin/bash
# All checks that need no server. Fails at the first one that does.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${KINDBOX_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/kindbox}/bin"

step() {
    echo "lint: $*"
    "$@"
}

step cargo fmt --all --check
step cargo clippy --workspace --all-targets -- -D warnings

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
