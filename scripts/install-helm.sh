#!/bin/bash
# Gets Helm, where it is missing: from the project's own site, or, where that cannot be reached, built from the Go module
# proxy. Quick and quiet when it is there.
set -euo pipefail

version=${HELM:-4.3.1}
bin=${KINDBOX_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/kindbox}/bin
export PATH=$PATH:$bin:/usr/local/go/bin

command -v helm >/dev/null && exit 0
mkdir -p "$bin"
case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) machine=$(uname -m) ;;
esac

# Beside its place, then moved there at once: a broken download is never taken for a whole one.
staging=$(mktemp -d "$bin/fetch.XXXXXX")
trap 'rm -rf "$staging"' EXIT
if curl --proto '=https' --silent --fail --location --connect-timeout 10 --max-time 120 \
    --output "$staging/helm.tar.gz" "https://get.helm.sh/helm-v$version-linux-$machine.tar.gz" &&
    tar -C "$staging" -xzf "$staging/helm.tar.gz"; then
    mv "$staging/linux-$machine/helm" "$bin/helm"
    exit 0
fi
if command -v go >/dev/null; then
    echo "install-helm: building Helm $version from its source (some minutes, once)" >&2
    cd "$bin"
    CGO_ENABLED=0 GOBIN=$bin GOFLAGS=-buildvcs=false \
        go install -trimpath -ldflags '-s -w' "helm.sh/helm/v4/cmd/helm@v$version" && exit 0
fi
echo "install-helm: Helm can neither be downloaded nor built here: install Helm 4 or Go (https://helm.sh/docs/intro/install)" >&2
exit 1
