//! Classifies the error of a call that did not return.

use std::time::Duration;

use wasmtime::PoolConcurrencyLimitError;

use super::store_limiter::GrowthExceeded;
use crate::contract::{
    limits::{Limit, PluginLimits},
    memory_budget::BudgetExhausted,
    trap::Trap,
};

/// Classifies an error of the call. Its message has the cause and the innermost functions of the backtrace.
pub(super) fn classify_trap(error: &wasmtime::Error, limits: &PluginLimits, cpu: Duration) -> Trap {
    let text = format!("{error:#}");
    if cpu > limits.cpu_time && matches!(error.downcast_ref(), Some(wasmtime::Trap::Interrupt)) {
        return Trap::CpuTime(limits.cpu_time);
    }
    if let Some(exhausted) = error.downcast_ref::<BudgetExhausted>() {
        return Trap::HostExhausted(exhausted.to_string());
    }
    // The system refused to map memory for an instance, or the pool has no slot left.
    if error.is::<PoolConcurrencyLimitError>() || error.is::<std::io::Error>() {
        return Trap::HostExhausted(text);
    }
    match error.downcast_ref() {
        Some(GrowthExceeded(Limit::TableElements)) => return Trap::Tables(limits.table_elements),
        Some(GrowthExceeded(_)) => return Trap::Memory(limits.memory),
        None if text.contains("fuel allocated for hostcalls") => return Trap::Bytes(limits.call_bytes),
        None => {}
    }
    // The text begins with the context of the backtrace; the cause comes last.
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
