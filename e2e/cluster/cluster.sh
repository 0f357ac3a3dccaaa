#!/bin/bash
# A kind cluster for the end-to-end tests.
#
#   cluster.sh up                creates it, if it is not there
#   cluster.sh images            makes the images of the servers and puts them on the node
#   cluster.sh engine            `registry`: stock images are pulled; `own`: they are made from packages
#   cluster.sh load IMAGE…       puts local images on the node
#   cluster.sh exec COMMAND…     runs a command with KUBECONFIG, kubectl, helm, kind and docker at hand, where the
#                                cluster's addresses can be reached
#   cluster.sh down              deletes it
#
# Where a Docker engine runs that can pull from a container registry, this is plain kind with its own node image.
# Elsewhere everything is built from package registries (Debian, Go): 15 minutes the first time, then kept.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
# shellcheck source=versions.sh
source "$here/versions.sh"
for part in go-tools engine debian-images node-image; do
    # shellcheck disable=SC1090
    source "$here/$part.sh"
done

cluster=coupon-e2e
mkdir -p "$bin"
export KUBECONFIG=$box/$cluster.kubeconfig
# Debian's docker client before any other.
export PATH=/usr/bin:$bin:$PATH

# The answer is kept while the cluster is up: both ways have clusters of their own.
with_registry() {
    case $(cat "$box/$cluster.engine" 2>/dev/null) in
    registry) return 0 ;;
    own) return 1 ;;
    esac
    timeout 10 docker info >/dev/null 2>&1 && timeout 60 docker pull --quiet registry.k8s.io/pause:3.10 >/dev/null 2>&1
}

# Everything after this speaks to the engine that was chosen.
choose_engine() {
    if with_registry; then
        engine=registry
        return
    fi
    engine=own
    export DOCKER_HOST=unix://$box/docker/docker.sock
    # Debian's client has no buildx.
    export DOCKER_BUILDKIT=0
}

inside() {
    if [ "$engine" = registry ]; then
        "$@"
    else
        nsenter -t "$(engine_pid || die "it is not up: run $0 up")" -n -- "$@"
    fi
}

up() {
    kind_binary
    "$here/../../scripts/install-helm.sh"
    local image=()
    if [ "$engine" = own ]; then
        engine_packages
        engine_up
        base_image
        build_node_image
        image=(--image "$node_image" --config "$here/kind.yaml")
    else
        kubectl_binary
    fi
    echo "$engine" >"$box/$cluster.engine"
    if inside kind get clusters 2>/dev/null | grep -qx "$cluster"; then
        if inside kubectl --request-timeout=10s get --raw /readyz >/dev/null 2>&1; then
            say "it is up already"
            [ "$engine" = registry ] || services_anew
            return
        fi
        say "it is there and does not answer, as after a reboot: making it anew"
        inside kind delete cluster --name "$cluster"
    fi
    inside kind create cluster --name "$cluster" "${image[@]}" --wait 180s
}

# Every hour kube-proxy empties its maps and fills them in one transaction, and some kernels leave them empty. It fills new
# ones well.
services_anew() {
    local family
    for family in ip ip6; do
        inside docker exec "$cluster-control-plane" nft delete table "$family" kube-proxy 2>/dev/null || true
    done
    inside kubectl -n kube-system delete pod -l k8s-app=kube-proxy >/dev/null
    inside kubectl -n kube-system wait pod -l k8s-app=kube-proxy --for=condition=Ready --timeout=60s >/dev/null
}

# Where kind pulls its node, kubectl comes from the same release.
kubectl_binary() {
    command -v kubectl >/dev/null && return
    say "fetching kubectl"
    curl --silent --show-error --fail --location --output "$bin/kubectl" \
        "https://dl.k8s.io/release/v$KUBERNETES/bin/linux/$(dpkg --print-architecture)/kubectl"
    chmod +x "$bin/kubectl"
}

images() {
    if [ "$engine" = own ]; then
        server_images
        inside kind load docker-image --name "$cluster" coupon-e2e/{redis:7,postgres:15,kafka:4.1.1}
    fi
}

down() {
    if [ "$engine" = registry ]; then
        kind delete cluster --name "$cluster"
    elif engine_pid >/dev/null; then
        inside kind delete cluster --name "$cluster" || true
        engine_down
    fi
    rm -f "$box/$cluster.engine"
}

choose_engine
case ${1:-} in
up) up ;;
images) images ;;
engine) echo "$engine" ;;
load)
    shift
    inside kind load docker-image --name "$cluster" "$@"
    ;;
exec)
    shift
    inside "$@"
    ;;
down) down ;;
*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
