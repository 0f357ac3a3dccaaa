# What the cluster is made of. Sourced.
# shellcheck disable=SC2034
KUBERNETES=${KUBERNETES:-1.34.4} # the last minor that runs on cgroup v1 without extra flags
KIND=${KIND:-0.33.0}
CONTAINERD=${CONTAINERD:-2.2.9}
ETCD=${ETCD:-3.6.13}
COREDNS=${COREDNS:-1.12.1}
CRICTL=${CRICTL:-1.34.0}

# Everything that is built is kept here, 3.4 GB of it, and taken again next time.
box=${KINDBOX_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/kindbox}
bin=$box/bin
base_image=debian:bookworm-slim
node_image=kindest/node:v$KUBERNETES-kindbox

say() {
    echo "cluster: $*" >&2
}

die() {
    say "$*"
    exit 1
}
