#!/bin/sh
# Fetches the Kafka broker that tests and the local stack run: its jars, from Maven Central, into a cache folder.
# Prints the folder on stdout, everything else on stderr. Quick and quiet when it is there already.
#
# COUPON_KAFKA_HOME overrides the folder; jars that lie in its libs/ are used as they are.
set -eu

version=4.1.1
home=${COUPON_KAFKA_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/coupon/kafka-$version}

if [ -e "$home/libs/kafka_2.13-$version.jar" ]; then
    echo "$home"
    exit 0
fi

command -v mvn >/dev/null || {
    echo "install-kafka: mvn is missing; run 'make install' (or: apt-get install maven)" >&2
    exit 1
}

mkdir -p "$home"
# Fetched beside its place and moved there at once: a broken download is never taken for a whole one.
staging=$(mktemp -d "$home/fetch.XXXXXX")
trap 'rm -rf "$staging"' EXIT
echo "install-kafka: fetching Kafka $version (46 jars, 43 MB) into $home" >&2
mvn --batch-mode --quiet --file "$(dirname "$0")/kafka/pom.xml" dependency:copy-dependencies \
    -Dkafka.version="$version" -DoutputDirectory="$staging/libs" >&2 || {
    echo "install-kafka: Maven could not fetch Kafka $version; check the network and ~/.m2/settings.xml" >&2
    exit 1
}
# Another process may have been quicker.
mv -T "$staging/libs" "$home/libs" 2>/dev/null || [ -e "$home/libs/kafka_2.13-$version.jar" ] || {
    echo "install-kafka: $home/libs is there but holds no Kafka $version; remove it and try again" >&2
    exit 1
}
echo "$home"
