//! Limits of the memories and tables of one call.

use std::sync::Arc;

use wasmtime::ResourceLimiterAsync;

use super::cpu_meter::CpuMeter;
use crate::contract::{
    limits::{Limit, PluginLimits},
    memory_budget::MemoryLease,
};

/// Growth in bytes beyond which a call needs a permit. Each page costs the kernel time when it is first touched and when
/// it is zeroed, and that time does not count as CPU time of the component.
const MAX_GROWTH_WITHOUT_PERMIT: usize = 4 << 20;

/// Limits the growth of all memories and tables of one call together.
pub(super) struct StoreLimiter {
    /// Bytes of all memories.
    pub memory: usize,
    /// Bytes by which the memories have grown since they were created.
    grown: usize,
    max_memory: usize,
    /// Elements of all tables.
    tables: usize,
    max_table_elements: usize,
    meter: Arc<CpuMeter>,
    lease: Arc<MemoryLease>,
}

impl StoreLimiter {
    /// A limiter for a call that begins.
    pub fn new(limits: &PluginLimits, meter: Arc<CpuMeter>, lease: Arc<MemoryLease>) -> Self {
        Self {
            lease,
            memory: 0,
            grown: 0,
            max_memory: limits.memory,
            tables: 0,
            max_table_elements: limits.table_elements as usize,
            meter,
        }
    }

    /// Returns true if the memories have grown so much that growing and releasing them needs a permit.
    pub fn needs_permit(&self) -> bool {
        self.grown > MAX_GROWTH_WITHOUT_PERMIT
    }
}

/// The error of growth beyond a limit.
#[derive(Debug, thiserror::Error)]
#[error("more {} than is allowed", .0.name())]
pub(super) struct GrowthExceeded(pub Limit);

#[async_trait::async_trait]
impl ResourceLimiterAsync for StoreLimiter {
    async fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        own: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let may = charge_growth(
            &mut self.memory,
            self.max_memory,
            Limit::Memory,
            (current, desired, own),
        )?;
        if may {
            // Before the CPU permit, which must not be held while other calls return memory.
            self.lease.charge(desired.saturating_sub(current)).await?;
        }
        if may && current > 0 {
            self.grown += desired - current;
            if self.needs_permit() && !self.meter.has_permit() {
                self.meter.clone().acquire_permit().await;
            }
        }
        Ok(may)
    }

    async fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        own: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let max = self.max_table_elements;
        charge_growth(
            &mut self.tables,
            max,
            Limit::TableElements,
            (current, desired, own),
        )
    }

    fn instances(&self) -> usize {
        64
    }

    fn tables(&self) -> usize {
        32
    }

    fn memories(&self) -> usize {
        8
    }
}

/// Adds growth to the total. Beyond the limit of the plugin it traps, because a component could handle a failure and try
/// again forever. Beyond the maximum that the component itself declares, it only fails.
fn charge_growth(
    total: &mut usize,
    max: usize,
    limit: Limit,
    (current, desired, own): (usize, usize, Option<usize>),
) -> wasmtime::Result<bool> {
    if own.is_some_and(|own| desired > own) {
        return Ok(false);
    }
    let grown = total.saturating_add(desired.saturating_sub(current));
    if grown > max {
        return Err(wasmtime::Error::from(GrowthExceeded(limit)));
    }
    *total = grown;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use wasmtime::{Store, component::ResourceTable};

    use super::*;
    use crate::{
        contract::trap::Trap,
        policy::{
            grants::{Grant, PluginGrants},
            plugin_policy::PluginPolicy,
        },
        sandbox::{
            capabilities::{HostCalls, PluginCall},
            engine::{Engine, StoreState, trap::classify_trap},
        },
    };

    /// `(module (table 1 funcref) (memory 1) (func (export "grow")
    ///     (loop (drop (table.grow 0 (ref.null func) (i32.const 1000))) (br 0))))`, with `memory.grow` of one page
    /// instead if `memory` is set.
    fn build_grower(memory: bool) -> Vec<u8> {
        let body: &[u8] = if memory {
            &[0, 0x03, 0x40, 0x41, 1, 0x40, 0, 0x1a, 0x0c, 0, 0x0b, 0x0b]
        } else {
            &[
                0, 0x03, 0x40, 0xd0, 0x70, 0x41, 0xe8, 0x07, 0xfc, 0x0f, 0, 0x1a, 0x0c, 0, 0x0b, 0x0b,
            ]
        };
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        module.extend([
            1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0, 4, 4, 1, 0x70, 0, 1, 5, 3, 1, 0, 1,
        ]);
        module.extend(b"\x07\x08\x01\x04grow\0\0\x0a");
        module.push(body.len() as u8 + 2);
        module.push(1);
        module.push(body.len() as u8);
        module.extend(body);
        module
    }

    #[tokio::test]
    async fn growth_beyond_the_limit_traps() {
        let engine = Engine::new(2, 1 << 30, None, None).expect("an engine");
        let limits = PluginLimits {
            memory: 1 << 20,
            table_elements: 5000,
            ..PluginLimits::default()
        };
        for (memory, expected) in [(true, Trap::Memory(1 << 20)), (false, Trap::Tables(5000))] {
            let policy = PluginPolicy {
                plugin: "p".into(),
                grants: PluginGrants::new("p", "", None, Grant::default()),
                config: Vec::new(),
                limits: limits.clone(),
            };
            let mut store = Store::new(
                &engine.engine,
                StoreState {
                    host_calls: HostCalls(PluginCall::new(Arc::new(policy), None)),
                    limiter: StoreLimiter::new(
                        &limits,
                        Arc::new(CpuMeter::new(engine.permits.clone())),
                        MemoryLease::unlimited(),
                    ),
                    wasi: None,
                    table: ResourceTable::new(),
                },
            );
            store.limiter_async(|state| &mut state.limiter);
            store.set_epoch_deadline(1 << 40);
            let module = wasmtime::Module::new(&engine.engine, build_grower(memory)).expect("a module");
            let instance = wasmtime::Instance::new_async(&mut store, &module, &[])
                .await
                .expect("an instance");
            let grow = instance
                .get_typed_func::<(), ()>(&mut store, "grow")
                .expect("a function");
            let error = grow.call_async(&mut store, ()).await.expect_err("it can't");
            assert_eq!(
                classify_trap(&error, &limits, Duration::ZERO),
                expected,
                "{error:#}"
            );
            let limiter = &store.data().limiter;
            assert!(limiter.memory <= limits.memory && limiter.tables <= 5000);
            assert!(
                limiter.memory == limits.memory || limiter.tables > 4000,
                "it grew before"
            );
        }
    }
}
