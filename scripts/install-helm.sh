#!/bin/bash
# Gets Helm, where it is missing: built from the Go module proxy where there is a Go compiler, else downloaded from the
# project's own site. Quick and quiet when it is there.
set -euo pipefail

version=${HELM:-4.3.1}
bin=${KINDBOX_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/kindbox}/bin
export PATH=$PATH:$bin:/usr/local/go/bin

command -v helm >/dev/null && exit 0
mkdir -p "$bin"
if command -v go >/dev/null; then
    echo "install-helm: building Helm $version (some minutes, once)" >&2
    cd "$bin"
    CGO_ENABLED=0 GOBIN=$bin GOFLAGS=-buildvcs=false \
        go install -trimpath -ldflags '-s -w' "helm.sh/helm/v4/cmd/helm@v$version" && exit 0
    echo "install-helm: could not be built; trying to download it" >&2
fi
case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) machine=$(uname -m) ;;
esac
# Beside its place, then moved there at once: a broken download is never taken for a whole one.
staging=$(mktemp -d "$bin/fetch.XXXXXX")
trap 'rm -rf "$staging"' EXIT
echo "install-helm: downloading Helm $version" >&2
curl --proto '=https' --silent --show-error --fail --location --output "$staging/helm.tar.gz" \
    "https://get.helm.sh/helm-v$version-linux-$machine.tar.gz" &&
    tar -C "$staging" -xzf "$staging/helm.tar.gz" &&
    mv "$staging/linux-$machine/helm" "$bin/helm" || {
    echo "install-helm: Helm could not be installed; install Go or Helm (https://helm.sh/docs/intro/install)" >&2
    exit 1
}
