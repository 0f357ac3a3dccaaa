# One image with all binaries. `docker build .` compiles them; where they are compiled already (target `prebuilt`,
# which needs no network), they are taken from the folder of the build context that BINARIES names:
#
#   docker build --target prebuilt --build-arg BINARIES=bin .
#
# Debian bookworm throughout: librdkafka is linked to its libssl and zlib.

ARG BASE=debian:bookworm-slim

FROM ${BASE} AS runtime
# What `ldd` names beyond libc. Where a base has them already, nothing is fetched.
RUN for library in libssl.so.3 libcrypto.so.3 libz.so.1; do ldconfig -p | grep -q "$library" || missing=1; done; \
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing=1; \
    [ -z "$missing" ] || { apt-get update \
      && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
      && rm -rf /var/lib/apt/lists/*; }
# A number: Kubernetes must see that it is not root.
USER 65532:65532
ENV PATH=/usr/local/bin:/usr/bin:/bin
CMD ["coupon", "--help"]

FROM runtime AS prebuilt
ARG BINARIES=bin
COPY ${BINARIES}/operator ${BINARIES}/intake ${BINARIES}/worker ${BINARIES}/coupon /usr/local/bin/

FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
# The caches survive a change of the source.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/source/target \
    cargo build --release --locked --bins --package operator --package intake --package worker --package coupon \
    && mkdir /out && cp target/release/operator target/release/intake target/release/worker target/release/coupon /out/

FROM runtime
COPY --from=build /out/ /usr/local/bin/
