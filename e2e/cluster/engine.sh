# Docker where none runs: dockerd and every node live in a network namespace of their own, so nothing of them is on the
# machine's interfaces, and nothing in there reaches the internet. Sourced after versions.sh.

engine_packages() {
    local missing=() package
    for package in docker.io debootstrap iptables jq gcc libc6-dev; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    [ "$(id -u)" = 0 ] || die "without a Docker engine, this needs root: it makes namespaces and root file systems"
    say "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

engine_pid() {
    local pid
    pid=$(cat "$box/docker/docker.pid" 2>/dev/null) || return 1
    [ -d "/proc/$pid" ] && grep -q dockerd "/proc/$pid/comm" && echo "$pid"
}

engine_up() {
    engine_pid >/dev/null && return
    mkdir -p "$box/docker"
    rm -f "$box/docker/docker.pid" "$box/docker/docker.sock"
    # Kept beside the images: the running engine must not depend on a checkout that may move.
    install -m755 "$here/runc-capped" "$box/docker/runc-capped"
    printf '{"runtimes":{"runc-capped":{"path":"%s"}},"default-runtime":"runc-capped"}\n' \
        "$box/docker/runc-capped" >"$box/docker/daemon.json"
    setsid unshare --net sh -c 'ip link set lo up; exec "$@"' dockerd-in-namespace \
        /usr/sbin/dockerd --config-file "$box/docker/daemon.json" --data-root "$box/docker/data" \
        --exec-root "$box/docker/exec" -H "$DOCKER_HOST" --pidfile "$box/docker/docker.pid" \
        >"$box/docker/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 60); do
        docker info >/dev/null 2>&1 && return
        sleep 0.5
    done
    die "dockerd did not start: see $box/docker/dockerd.log"
}

engine_down() {
    local pid
    pid=$(engine_pid) || return 0
    kill "$pid"
    for _ in $(seq 40); do
        [ -d "/proc/$pid" ] || return 0
        sleep 0.5
    done
    die "dockerd ($pid) does not end: see $box/docker/dockerd.log"
}

has_image() {
    docker image inspect "$1" >/dev/null 2>&1
}
