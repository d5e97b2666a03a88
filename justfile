# Short names for what people do every day; `cargo xtask help` has the rest.

_default:
    @just --list --unsorted

# See Ostler at work, without a cluster
demo *options:
    cargo xtask demo {{options}}

# What a change must pass, or tiers and parts of test names: embedded deletion::
test *tests:
    cargo xtask test {{tests}}

# Measure Ostler beside other operators: target/bench/report.json, docs/benchmarks.md
bench *options:
    cargo xtask bench {{options}}

# What CI runs
ci:
    .ci/run

# Build the plugins to target/components
components *packs:
    cargo xtask components {{packs}}

# A real Kubernetes control plane, until Ctrl-C
control-plane:
    cargo xtask control-plane

# A real cluster of one node, until Ctrl-C
node *options:
    cargo xtask node {{options}}

# The image of the host, as an OCI archive
image *options:
    cargo xtask image {{options}}

# What the registries of four languages would get: just publish --dry-run
publish *options:
    cargo xtask publish {{options}}

# Write crds/ from the Rust types
crds:
    cargo xtask crds

fmt:
    cargo fmt --all

lint:
    cargo clippy --workspace --all-targets -- -D warnings
