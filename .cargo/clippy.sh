#!/usr/bin/env bash
# The compiler of this workspace's packages with clippy's lints, for `cargo xtask test --lint`; see rustc.sh.
exec clippy-driver "$@"
