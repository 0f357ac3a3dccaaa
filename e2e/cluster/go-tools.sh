# Go programs from the module proxy. Sourced after versions.sh.

# The proxy has sources only, so the compiler itself comes from the distribution or is there.
need_go() {
    command -v go >/dev/null && return
    [ -x /usr/local/go/bin/go ] && export PATH=$PATH:/usr/local/go/bin && return
    say "installing Go"
    apt-get update -qq
    # Debian's own is too old for Kubernetes; it fetches the one that a module asks for.
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -t bookworm-backports golang-go >/dev/null 2>&1 ||
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends golang-go >/dev/null ||
        die "Go is missing and could not be installed: install Go 1.21 or later (https://go.dev/dl)"
}

# go_install BINARY ARGUMENTS…: skipped where the binary is there.
go_install() {
    local out=$1
    shift
    [ -x "$bin/$out" ] && return
    need_go
    say "building $out"
    mkdir -p "$bin"
    (cd "$box" && CGO_ENABLED=0 GOBIN=$bin GOFLAGS=-buildvcs=false go install -trimpath "$@")
}

kind_binary() {
    go_install kind -ldflags '-s -w' "sigs.k8s.io/kind@v$KIND"
}
