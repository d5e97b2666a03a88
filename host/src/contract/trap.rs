//! Ends of a call into a component that did not return.

use std::time::Duration;

use super::limits::{Bytes, Limit};

/// How a call into a component ended when it did not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// Computed longer than it may.
    #[error("computed for more than {0:?}: does it loop?")]
    CpuTime(Duration),
    /// Took longer than it may.
    #[error("took longer than {0:?}, host calls included")]
    Timeout(Duration),
    /// Asked for more memory than it may have.
    #[error("asked for more than {}B of memory", Bytes(*.0))]
    Memory(usize),
    /// Asked for larger tables than it may have.
    #[error("asked for more than {0} elements of tables")]
    Tables(u32),
    /// Handed over more than it may in one call.
    #[error("handed more than {}B to the host at once", Bytes(*.0))]
    Bytes(usize),
    /// Anything else: unreachable, a panic, a stack overflow …
    #[error("trapped: {0}")]
    Other(String),
}

impl Trap {
    /// How it is counted.
    pub fn kind(&self) -> TrapKind {
        match self {
            Self::CpuTime(_) => TrapKind::CpuTime,
            Self::Timeout(_) => TrapKind::Timeout,
            Self::Memory(_) | Self::Tables(_) => TrapKind::Memory,
            Self::Bytes(_) | Self::Other(_) => TrapKind::Other,
        }
    }

    /// The limit it ran into.
    pub fn limit(&self) -> Option<Limit> {
        Some(match self {
            Self::CpuTime(_) => Limit::CpuTime,
            Self::Timeout(_) => Limit::Timeout,
            Self::Memory(_) => Limit::Memory,
            Self::Tables(_) => Limit::TableElements,
            Self::Bytes(_) => Limit::CallBytes,
            Self::Other(_) => return None,
        })
    }
}

/// What ended a component's call before it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrapKind {
    /// Computed too long.
    CpuTime,
    /// Took too long.
    Timeout,
    /// Wanted too much memory.
    Memory,
    /// Trapped.
    Other,
}
