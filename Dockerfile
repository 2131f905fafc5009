# The default target is a small image to run jobs in: a static busybox and /dislock. The target `runtime` is /dislock
# alone, for COPY --from and init containers; `archive` is what build/runtime makes for hosts. Made by one build, all
# three hold the same folder. A build on another day may find newer base images, and so make another folder: ARCHIVE
# names an archive to take the folder from instead, as a release does. A dist/dislock.pyz in the build context is used as
# it is; without one it is built here. docs/kubernetes.md says how to use each.

ARG BUILD_IMAGE=python:3.13-slim-trixie
ARG BASE_IMAGE=busybox:stable-musl

FROM ${BASE_IMAGE} AS base

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
# In the build context: dist/dislock-linux-x86_64.tar.gz
ARG ARCHIVE=
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=cache,target=/src/.cache \
    test -n "${ARCHIVE}" || test -s dist/dislock.pyz || build/pyz
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=cache,target=/src/.cache \
    if [ -n "${ARCHIVE}" ]; then mkdir /out && tar -xzf "${ARCHIVE}" -C /out; \
    else build/runtime --folder /out/dislock; fi
RUN --mount=type=bind,from=base,target=/base umask 022 && python3 -m build.folder.image /base /out/dislock /out/image

FROM build AS packed
RUN build/runtime --pack /out/dislock --output /out/archive

FROM scratch AS archive
COPY --from=packed /out/archive/ /

FROM scratch AS runtime
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dislock runtime" \
      org.opencontainers.image.description="The folder /dislock alone: locks on PostgreSQL for cron jobs and commands" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/dislock /dislock
USER 65532:65532
ENTRYPOINT ["/dislock/dislock"]

FROM ${BASE_IMAGE} AS image
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dislock" \
      org.opencontainers.image.description="Locks on PostgreSQL for cron jobs and commands" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/image/ /
COPY --from=build /out/dislock /dislock
USER 65532:65532
ENTRYPOINT ["/dislock/dislock"]
CMD ["--help"]
