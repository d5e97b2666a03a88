#!/usr/bin/env bash
# The compiler of this workspace's packages. Its path is part of their identity: without it, two checkouts would take each other's
# packages in the build folder that they share for their own. Not in sh, which drops variables such as CARGO_BIN_EXE_steps-shim.
exec "$@"
