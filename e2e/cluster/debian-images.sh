# Images made of Debian packages, where no container registry can be reached. Sourced after engine.sh.

# debian_rootfs FOLDER PACKAGE…
debian_rootfs() {
    local folder=$1 list mirror
    shift
    [ -e "$folder.done" ] && return
    say "debootstrap $(basename "$folder")"
    rm -rf "$folder"
    list=$(IFS=, && echo "$*")
    mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null)
    debootstrap --variant=minbase --include="$list" bookworm "$folder" "${mirror:-http://deb.debian.org/debian}" \
        >"$folder.log" 2>&1 || die "debootstrap failed: see $folder.log"
    rm -rf "$folder"/var/cache/apt/archives/*.deb
    touch "$folder.done"
}

# Stands in for the image of that name, so that a Dockerfile which starts from it builds here and elsewhere.
base_image() {
    has_image "$base_image" && return
    debian_rootfs "$box/debian" ca-certificates
    tar -C "$box/debian" -c . | docker import -c 'CMD ["bash"]' - "$base_image" >/dev/null
}

# apt_image TAG PACKAGE…: the base image and Debian packages.
apt_image() {
    local tag=$1 folder
    shift
    has_image "$tag" && return
    debian_rootfs "$box/debian" ca-certificates
    say "packing $tag: $*"
    folder=$(mktemp -d -p "$box")
    cp -a "$box/debian/." "$folder"
    cp /etc/resolv.conf "$folder/etc/resolv.conf"
    if [ -e /etc/apt/sources.list.d/debian.sources ]; then
        cp /etc/apt/sources.list.d/debian.sources "$folder/etc/apt/sources.list.d/"
        : >"$folder/etc/apt/sources.list"
        mkdir -p "$folder/usr/share/keyrings"
        cp /usr/share/keyrings/debian-archive-keyring.gpg "$folder/usr/share/keyrings/"
    fi
    # No package may start its server while it is installed.
    printf '#!/bin/sh\nexit 101\n' >"$folder/usr/sbin/policy-rc.d"
    chmod +x "$folder/usr/sbin/policy-rc.d"
    mount -t proc proc "$folder/proc"
    local status=0
    chroot "$folder" sh -ec "apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $*
        apt-get clean
        rm -rf /var/lib/apt/lists/*" >"$box/apt-image.log" 2>&1 || status=$?
    umount "$folder/proc"
    rm -f "$folder/usr/sbin/policy-rc.d"
    [ "$status" = 0 ] || {
        rm -rf "$folder"
        die "apt-get failed: see $box/apt-image.log"
    }
    tar -C "$folder" -c . | docker import -c 'CMD ["bash"]' - "$tag" >/dev/null
    rm -rf "$folder"
}

# The servers of values-dev.yaml.
server_images() {
    apt_image coupon-e2e/redis:7 redis-server
    apt_image coupon-e2e/postgres:15 postgresql
    has_image coupon-e2e/kafka:4.1.1 && return
    apt_image coupon-e2e/java:17 openjdk-17-jre-headless
    local context
    context=$(mktemp -d)
    cp -r "$("$here/../../scripts/install-kafka.sh")/libs" "$context/libs"
    printf 'FROM coupon-e2e/java:17\nCOPY libs /opt/kafka/libs\n' >"$context/Dockerfile"
    docker build --quiet --tag coupon-e2e/kafka:4.1.1 "$context" >/dev/null
    rm -rf "$context"
}
