#!/bin/bash
# Installs the chart into a kind cluster, with Redis, Kafka and Postgres beside it, and runs the tests of e2e/ there.
# KEEP=1 leaves the cluster; arguments go to the tests: e2e/run.sh window
set -euo pipefail
cd "$(dirname "$0")/.."

image=coupon:e2e
cluster=e2e/cluster/cluster.sh

# step NAME COMMAND…: says how long it took.
step() {
    local name=$1 started=$SECONDS
    shift
    "$@"
    echo "e2e: $name took $((SECONDS - started))s"
}

# Tests share one profile with everything else: the image gets the same binaries that `make test` tested.
build() {
    cargo build --bin operator --bin intake --bin worker --bin coupon
    cargo test --workspace --features e2e/cluster --test cluster --no-run
}

# A context of its own: nothing but the binaries, without their debug information.
make_image() {
    local context binaries
    context=$(mktemp -d)
    binaries=$(cargo metadata --format-version 1 --no-deps --offline | sed -E 's/.*"target_directory":"([^"]*)".*/\1/')/debug
    mkdir "$context/bin"
    for binary in operator intake worker coupon; do
        strip --output-file "$context/bin/$binary" "$binaries/$binary"
    done
    cp Dockerfile "$context/"
    "$cluster" exec docker build --quiet --target prebuilt --tag "$image" "$context"
    rm -rf "$context"
    "$cluster" load "$image"
}

install_chart() {
    local own=() id component annotations=()
    # A cluster that stayed has pods of the image before: another id makes them new.
    id=$("$cluster" exec docker image inspect --format '{{.Id}}' "$image")
    for component in operator intake worker; do
        annotations+=(--set-string "$component.podAnnotations.image=${id#sha256:}")
    done
    [ "$("$cluster" engine)" = registry ] || own=(--values e2e/own-images.yaml)
    "$cluster" exec helm upgrade --install coupon charts/coupon --namespace coupon --create-namespace \
        --values charts/coupon/values-dev.yaml --values e2e/values.yaml "${own[@]}" "${annotations[@]}"
    for component in operator intake worker; do
        "$cluster" exec kubectl -n coupon rollout status "deployment/coupon-$component" --timeout=300s || {
            explain
            return 1
        }
    done
}

# What somebody wants to read after a failure.
explain() {
    "$cluster" exec kubectl get pods --all-namespaces -o wide || true
    "$cluster" exec kubectl get ccamp --all-namespaces || true
    for component in operator intake worker; do
        echo "--- logs of $component"
        "$cluster" exec kubectl -n coupon logs -l "app.kubernetes.io/component=$component" --all-containers --tail=60 || true
    done
}

run_tests() {
    "$cluster" exec cargo test --offline --workspace --features e2e/cluster --test cluster -- \
        --test-threads=1 --nocapture "$@" || {
        explain
        return 1
    }
}

finish() {
    if [ -n "${KEEP:-}" ]; then
        echo "e2e: the cluster stays: $cluster exec kubectl get ccamp -A; $cluster down"
    else
        step "down" "$cluster" down
    fi
}

step "build" build
trap finish EXIT
step "cluster" "$cluster" up
step "server images" "$cluster" images
step "image" make_image
step "install" install_chart
step "tests" run_tests "$@"
