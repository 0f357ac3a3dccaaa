#!/bin/bash
# Installs what building, testing and the local stack need on Debian or Ubuntu, where it is missing: a C toolchain for
# librdkafka, Redis, Postgres, Java and Maven for Kafka, Rust, and Kafka itself. Says what it does; runs as root or with
# sudo; does nothing, in well under a second, when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"

say() {
    echo "install: $*" >&2
}

fail() {
    say "$*"
    exit 1
}

has() {
    command -v "$1" >/dev/null
}

# Debian keeps the server's programs out of PATH.
has_postgres() {
    has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

# The linker finds it, whatever the architecture.
has_library() {
    compgen -G "/usr/include/$1" >/dev/null || compgen -G "/usr/include/*-linux-gnu/$1" >/dev/null
}

packages=()
has gcc && has make || packages+=(build-essential)
has pkg-config || packages+=(pkg-config)
has_library openssl/ssl.h || packages+=(libssl-dev)
has_library zlib.h || packages+=(zlib1g-dev)
has redis-server || packages+=(redis-server)
has_postgres || packages+=(postgresql)
has java || packages+=(default-jre-headless)
has curl || packages+=(curl)
[ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)
kafka_home=${COUPON_KAFKA_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/coupon/kafka-4.1.1}
if [ ! -d "$kafka_home/libs" ]; then
    has mvn || packages+=(maven)
fi

if [ ${#packages[@]} -gt 0 ]; then
    has apt-get || fail "missing: ${packages[*]}. This is no Debian or Ubuntu: install what corresponds, then try again"
    root=()
    if [ "$(id -u)" != 0 ]; then
        has sudo || fail "missing: ${packages[*]}. Run this as root, or install sudo"
        root=(sudo)
    fi
    say "apt-get install ${packages[*]}"
    # Tests start servers of their own; the packages must not start theirs. A policy that is there stays.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee "$policy" >/dev/null
        "${root[@]}" chmod +x "$policy"
        trap '"${root[@]}" rm -f "$policy"' EXIT
    fi
    log=$(mktemp)
    "${root[@]}" apt-get update -qq </dev/null >"$log" 2>&1 ||
        fail "apt-get update failed: $(tail -n 3 "$log"); check the network and /etc/apt/sources.list"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null >"$log" 2>&1 ||
        fail "apt-get install failed: $(tail -n 5 "$log"); the whole output is in $log"
    rm -f "$log"
fi

if ! has cargo; then
    say "installing Rust with rustup (https://rustup.rs)"
    # The script that https://sh.rustup.rs serves, from the host that also has the toolchains.
    curl --proto '=https' --tlsv1.2 --silent --show-error --fail https://static.rust-lang.org/rustup/rustup-init.sh |
        sh -s -- -y --profile minimal --default-toolchain none --no-modify-path >&2 ||
        fail "rustup could not be installed; check the network, or install Rust yourself (https://rustup.rs)"
fi
# The release that rust-toolchain.toml names, with rustfmt and clippy.
if has rustup && ! cargo --version >/dev/null 2>&1; then
    say "installing the toolchain of rust-toolchain.toml"
    rustup toolchain install --no-self-update >&2 || fail "the toolchain could not be installed; check the network"
fi
cargo --version >/dev/null || fail "cargo does not run; see the message above"

scripts/install-kafka.sh >/dev/null
scripts/install-helm.sh
