//! Traps: the ends of calls into a component that did not return.

use std::time::Duration;

use super::limits::{Bytes, Limit};

/// The end of a call into a component that did not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// It used more CPU time than its limit.
    #[error("computed for more than {0:?}: does it loop?")]
    CpuTime(Duration),
    /// It took longer than its timeout.
    #[error("took longer than {0:?}, host calls included")]
    Timeout(Duration),
    /// It requested more memory than its limit.
    #[error("asked for more than {}B of memory", Bytes(*.0))]
    Memory(usize),
    /// It requested larger tables than its limit.
    #[error("asked for more than {0} elements of tables")]
    Tables(u32),
    /// It passed more bytes in one host call than its limit.
    #[error("handed more than {}B to the host at once", Bytes(*.0))]
    Bytes(usize),
    /// The host had no memory or no instance left for it. It is no fault of the component.
    #[error("was not run to its end: {0}")]
    HostExhausted(String),
    /// Any other trap: unreachable, a panic, a stack overflow …
    #[error("trapped: {0}")]
    Other(String),
}

impl Trap {
    /// The kind for metrics.
    pub fn kind(&self) -> TrapKind {
        match self {
            Self::CpuTime(_) => TrapKind::CpuTime,
            Self::Timeout(_) => TrapKind::Timeout,
            Self::Memory(_) | Self::Tables(_) => TrapKind::Memory,
            Self::HostExhausted(_) => TrapKind::HostExhausted,
            Self::Bytes(_) | Self::Other(_) => TrapKind::Other,
        }
    }

    /// The limit that was exceeded.
    pub fn limit(&self) -> Option<Limit> {
        Some(match self {
            Self::CpuTime(_) => Limit::CpuTime,
            Self::Timeout(_) => Limit::Timeout,
            Self::Memory(_) => Limit::Memory,
            Self::Tables(_) => Limit::TableElements,
            Self::Bytes(_) => Limit::CallBytes,
            Self::HostExhausted(_) | Self::Other(_) => return None,
        })
    }
}

/// The kinds of traps in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrapKind {
    /// Too much CPU time.
    CpuTime,
    /// Timeout.
    Timeout,
    /// Too much memory, or too large tables.
    Memory,
    /// No memory or instance of the host was left.
    HostExhausted,
    /// Any other trap.
    Other,
}
