//! The host's clients of other servers, and its processes, against servers of the tests. One binary, because each takes seconds to link.

mod common;
mod compile;
mod oci;
mod proxy;
mod redaction;
mod streams;
mod upstream;
mod upstream_faults;
