//! How a call ends that does not return.

use std::time::Duration;

use super::allowance::Exceeded;
use crate::{
    limits::{Bytes, Limit, Limits},
    metrics::TrapKind,
};

/// How a call into a component ended when it did not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// Computed longer than it may.
    #[error("computed for more than {0:?}: does it loop?")]
    Cpu(Duration),
    /// Took longer than it may.
    #[error("took longer than {0:?}, host calls included")]
    Wall(Duration),
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
            Self::Cpu(_) => TrapKind::Cpu,
            Self::Wall(_) => TrapKind::Wall,
            Self::Memory(_) | Self::Tables(_) => TrapKind::Memory,
            Self::Bytes(_) | Self::Other(_) => TrapKind::Other,
        }
    }

    /// The limit it ran into.
    pub fn limit(&self) -> Option<Limit> {
        Some(match self {
            Self::Cpu(_) => Limit::Cpu,
            Self::Wall(_) => Limit::Wall,
            Self::Memory(_) => Limit::Memory,
            Self::Tables(_) => Limit::TableElements,
            Self::Bytes(_) => Limit::CallBytes,
            Self::Other(_) => return None,
        })
    }
}

/// What an error of the call was.
pub(super) fn explain(error: &wasmtime::Error, limits: &Limits, cpu: Duration) -> Trap {
    let text = format!("{error:#}");
    if cpu > limits.cpu && matches!(error.downcast_ref(), Some(wasmtime::Trap::Interrupt)) {
        return Trap::Cpu(limits.cpu);
    }
    match error.downcast_ref() {
        Some(Exceeded(Limit::TableElements)) => return Trap::Tables(limits.table_elements),
        Some(Exceeded(_)) => return Trap::Memory(limits.memory),
        None if text.contains("fuel allocated for hostcalls") => return Trap::Bytes(limits.call_bytes),
        None => {}
    }
    // The first lines are the backtrace's context, the cause stands last.
    let cause = error.root_cause().to_string();
    let at: Vec<&str> = text
        .lines()
        .filter_map(|l| l.split_once("!").map(|(_, name)| name.trim()))
        .filter(|name| !name.is_empty())
        .take(6)
        .collect();
    Trap::Other(if at.is_empty() {
        cause
    } else {
        format!("{cause} (in {})", at.join(" < "))
    })
}
