# The node image that kind would pull, built from package registries: the Kubernetes binaries, etcd, CoreDNS and
# containerd from the Go module proxy, the root file system from Debian. Sourced after debian-images.sh.

module_folder() {
    echo "$(go env GOMODCACHE)/$1"
}

kubernetes_binaries() {
    local names=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl) name todo=()
    for name in "${names[@]}"; do
        [ -x "$bin/$name" ] || todo+=("k8s.io/kubernetes/cmd/$name")
    done
    [ ${#todo[@]} = 0 ] && return
    need_go
    say "building Kubernetes $KUBERNETES: ${#todo[@]} binaries, about 8 minutes on 2 cores"
    local folder=$box/kubernetes source version=k8s.io/component-base/version
    mkdir -p "$folder"
    (cd "$box" && go mod download "k8s.io/kubernetes@v$KUBERNETES")
    source=$(module_folder "k8s.io/kubernetes@v$KUBERNETES")
    {
        echo "module e2e.local/kubernetes"
        echo
        grep -E '^(go|godebug) ' "$source/go.mod"
        echo "require k8s.io/kubernetes v$KUBERNETES"
        # The module's zip lacks its staging modules; the published ones are the same code.
        echo "replace ("
        grep '=> ./staging' "$source/go.mod" | sed -E \
            "s#^[[:space:]]*(replace )?##; s#=> ./staging/src/(k8s.io/[a-z0-9-]+).*#=> \1 v0.${KUBERNETES#1.}#"
        echo ")"
    } >"$folder/go.mod"
    {
        printf '//go:build tools\n\npackage tools\n\nimport (\n'
        for name in "${names[@]}"; do
            printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' "$name"
        done
        echo ")"
    } >"$folder/tools.go"
    (cd "$folder" && go mod tidy >"$folder/tidy.log" 2>&1 &&
        CGO_ENABLED=0 GOBIN=$bin GOFLAGS=-buildvcs=false go install -trimpath -ldflags "-s -w \
            -X $version.gitVersion=v$KUBERNETES -X $version.gitMajor=1 \
            -X $version.gitMinor=$(cut -d. -f2 <<<"$KUBERNETES") -X $version.gitTreeState=clean" "${todo[@]}")
}

etcd_binary() {
    [ -x "$bin/etcd" ] && return
    need_go
    say "building etcd"
    local folder=$box/etcd
    mkdir -p "$folder"
    printf 'module e2e.local/etcd\n\ngo 1.24.0\n\nrequire go.etcd.io/etcd/server/v3 v%s\n' "$ETCD" >"$folder/go.mod"
    printf '//go:build tools\n\npackage tools\n\nimport _ "go.etcd.io/etcd/server/v3"\n' >"$folder/tools.go"
    (cd "$folder" && go mod tidy >"$folder/tidy.log" 2>&1 &&
        CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$bin/etcd" go.etcd.io/etcd/server/v3)
}

pause_binary() {
    [ -x "$bin/pause" ] && return
    gcc -Os -Wall -static -DVERSION=3.10.1 -o "$bin/pause" \
        "$(module_folder "k8s.io/kubernetes@v$KUBERNETES")/build/pause/linux/pause.c"
    strip "$bin/pause"
}

node_binaries() {
    kubernetes_binaries
    etcd_binary
    pause_binary
    go_install crictl -ldflags '-s -w' "sigs.k8s.io/cri-tools/cmd/crictl@v$CRICTL"
    go_install coredns -ldflags '-s -w' "github.com/coredns/coredns@v$COREDNS"
    go_install containerd -ldflags '-s -w' -tags 'no_btrfs no_devmapper no_zfs no_aufs' \
        "github.com/containerd/containerd/v2/cmd/"{containerd,ctr,containerd-shim-runc-v2}"@v$CONTAINERD"
}

node_rootfs() {
    local root=$box/node files
    debian_rootfs "$root" systemd systemd-sysv dbus conntrack iptables nftables iproute2 ethtool util-linux mount kmod \
        libseccomp2 pigz e2fsprogs ca-certificates curl jq procps socat runc containernetworking-plugins
    [ -e "$root.ready" ] && return
    say "laying out the node"
    (cd "$box" && go mod download "sigs.k8s.io/kind@v$KIND")
    files=$(module_folder "sigs.k8s.io/kind@v$KIND")/images/base/files
    mkdir -p "$root"/kind/{bin,images,manifests} "$root"/etc/{containerd,kubernetes/manifests,cni/net.d} \
        "$root"/opt/cni/bin "$root"/etc/systemd/system/{kubelet.service.d,containerd.service.d}
    install -m755 "$files"/usr/local/bin/* "$root/usr/local/bin/"
    install -m755 "$files"/kind/bin/* "$root/kind/bin/"
    install -m644 "$files/etc/crictl.yaml" "$root/etc/"
    install -m644 "$files/etc/containerd/config.toml" "$root/etc/containerd/"
    install -m644 "$files"/etc/default/* "$root/etc/default/"
    install -m644 "$files"/etc/sysctl.d/* "$root/etc/sysctl.d/"
    install -m644 "$files"/etc/systemd/system/*.{service,slice} "$root/etc/systemd/system/"
    install -m644 "$files"/etc/systemd/system/kubelet.service.d/* "$root/etc/systemd/system/kubelet.service.d/"
    install -m755 "$bin"/{containerd,ctr,containerd-shim-runc-v2,crictl} "$root/usr/local/bin/"
    install -m755 "$bin"/{kubeadm,kubelet,kubectl} "$root/usr/bin/"
    cp "$root"/usr/lib/cni/* "$root/opt/cni/bin/"
    install -m755 "$here/runc-capped" "$root/usr/local/sbin/runc"
    find "$root/lib/systemd/system/sysinit.target.wants/" -name systemd-tmpfiles-setup.service -delete
    rm -f "$root"/lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* \
        "$root"/etc/systemd/system/*.wants/* "$root"/lib/systemd/system/sockets.target.wants/{*udev*,*initctl*}
    echo ReadKMsg=no >>"$root/etc/systemd/journald.conf"
    ln -sf /usr/lib/systemd/systemd "$root/sbin/init"
    chroot "$root" systemctl -q enable kubelet.service containerd.service undo-mount-hacks.service
    chroot "$root" systemctl -q mask systemd-binfmt.service
    echo "v$KUBERNETES" >"$root/kind/version"
    # Containers cannot lower their OOM score without CAP_SYS_RESOURCE.
    sed -i 's#pause:3.10"#pause:3.10.1"#; s/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
        "$root/etc/containerd/config.toml"
    "$bin/ctr" oci spec |
        jq '.hooks.createContainer = [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
            >"$root/etc/containerd/cri-base.json"
    cat >"$root/etc/systemd/system/containerd.service.d/10-images.conf" <<'UNIT'
[Service]
ExecStartPost=/bin/sh -c 'for t in /kind/images/*.tar; do [ -e "$t.done" ] || { /usr/local/bin/ctr -n k8s.io images import --local "$t" && touch "$t.done"; }; done'
UNIT
    # One node: a point-to-point network needs no daemon.
    cat >"$root/etc/cni/net.d/10-ptp.conflist" <<'CNI'
{"cniVersion":"0.4.0","name":"e2e","plugins":[{"type":"ptp","ipMasq":false,"ipam":{"type":"host-local","dataDir":"/run/cni-ipam-state","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.244.0.0/24"}]]}},{"type":"portmap","capabilities":{"portMappings":true}}]}
CNI
    touch "$root.ready"
}

# scratch_image TAG BINARY PATH
scratch_image() {
    local context
    context=$(mktemp -d)
    cp "$2" "$context/bin"
    printf 'FROM scratch\nCOPY bin %s\nENTRYPOINT ["%s"]\n' "$3" "$3" >"$context/Dockerfile"
    docker build --quiet --tag "$1" "$context" >/dev/null
    rm -rf "$context"
}

# kube-proxy with the nft and iptables that it runs, and their libraries.
kube_proxy_image() {
    local root=$box/node folder library name
    folder=$(mktemp -d)
    mkdir -p "$folder/usr/sbin" "$folder/usr/local/bin" "$folder/usr/lib/x86_64-linux-gnu"
    cp "$bin/kube-proxy" "$folder/usr/local/bin/"
    cp -L "$root"/usr/sbin/{nft,xtables-nft-multi,conntrack} "$folder/usr/sbin/"
    chroot "$root" ldd /usr/sbin/nft /usr/sbin/xtables-nft-multi /usr/sbin/conntrack |
        grep -oE '/[^ ]+\.so[^ ]*' | sort -u |
        while read -r library; do
            mkdir -p "$folder$(dirname "$library")"
            cp -L "$root$library" "$folder$library"
        done
    cp -r "$root/usr/lib/x86_64-linux-gnu/xtables" "$folder/usr/lib/x86_64-linux-gnu/"
    for name in {ip,ip6}tables{,-save,-restore}; do
        ln -s xtables-nft-multi "$folder/usr/sbin/$name"
    done
    tar -C "$folder" -c . | docker import -c 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - \
        "registry.k8s.io/kube-proxy:v$KUBERNETES" >/dev/null
    rm -rf "$folder"
}

build_node_image() {
    has_image "$node_image" && return
    node_binaries
    node_rootfs
    say "packing $node_image"
    local registry=registry.k8s.io component names
    names=$("$bin/kubeadm" config images list --kubernetes-version "v$KUBERNETES" 2>/dev/null)
    for component in apiserver controller-manager scheduler; do
        scratch_image "$registry/kube-$component:v$KUBERNETES" "$bin/kube-$component" "/usr/local/bin/kube-$component"
    done
    scratch_image "$registry/coredns/coredns:v$COREDNS" "$bin/coredns" /coredns
    scratch_image "$registry/pause:3.10.1" "$bin/pause" /pause
    scratch_image "$(grep /etcd: <<<"$names")" "$bin/etcd" /usr/local/bin/etcd
    kube_proxy_image
    # shellcheck disable=SC2086
    docker save -o "$box/node/kind/images/kubernetes.tar" $names
    tar -C "$box/node" -c . | docker import -c 'ENV container=docker' \
        -c 'ENTRYPOINT [ "/usr/local/bin/entrypoint", "/sbin/init" ]' - "$node_image" >/dev/null
    rm -f "$box/node/kind/images/kubernetes.tar"
}
