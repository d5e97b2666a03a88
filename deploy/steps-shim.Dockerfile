# docker build --file deploy/steps-shim.Dockerfile --tag steps-shim .
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# Static, since it runs in the images of processes, which may have no C library. With a target, the flag does not apply to
# procedural macros.
RUN host=$(rustc -vV | sed -n 's/^host: //p') \
 && RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --profile shim --locked --package steps-shim --target "$host" \
 && cp "target/$host/shim/steps-shim" /shim

FROM scratch
COPY --from=build /shim /shim
USER 65532
ENTRYPOINT ["/shim"]
