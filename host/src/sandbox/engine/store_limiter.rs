//! What a call's instances may grow to.

use std::sync::Arc;

use wasmtime::ResourceLimiterAsync;

use super::cpu_meter::Meter;
use crate::contract::limits::{Limit, Limits};

/// What an instance may grow by without waiting for its turn: each page costs the kernel time when it is first touched,
/// and again when it is wiped, and no tick tells of that.
const AT_ONCE: usize = 4 << 20;

/// What the instances of one call may grow to, all their memories and tables together.
pub(super) struct Allowance {
    /// What they have grown to.
    pub memory: usize,
    /// Of it what they did not begin with.
    grown: usize,
    most_memory: usize,
    tables: usize,
    most_tables: usize,
    meter: Arc<Meter>,
}

impl Allowance {
    /// Nothing is used yet.
    pub fn new(limits: &Limits, meter: Arc<Meter>) -> Self {
        Self {
            memory: 0,
            grown: 0,
            most_memory: limits.memory,
            tables: 0,
            most_tables: limits.table_elements as usize,
            meter,
        }
    }

    /// Whether they have grown by so much that it is taken in turns, and given back in turns.
    pub fn large(&self) -> bool {
        self.grown > AT_ONCE
    }
}

/// More than is allowed.
#[derive(Debug, thiserror::Error)]
#[error("more {} than is allowed", .0.name())]
pub(super) struct Exceeded(pub Limit);

#[async_trait::async_trait]
impl ResourceLimiterAsync for Allowance {
    async fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        own: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let may = grown(
            &mut self.memory,
            self.most_memory,
            Limit::Memory,
            (current, desired, own),
        )?;
        if may && current > 0 {
            self.grown += desired - current;
            if self.large() && !self.meter.in_turn() {
                self.meter.clone().turn().await;
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
        let most = self.most_tables;
        grown(
            &mut self.tables,
            most,
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

/// A trap, not a failure that the component could go on with and try again for ever. What it says itself is its
/// most is only a failure.
fn grown(
    total: &mut usize,
    most: usize,
    limit: Limit,
    (current, desired, own): (usize, usize, Option<usize>),
) -> wasmtime::Result<bool> {
    if own.is_some_and(|own| desired > own) {
        return Ok(false);
    }
    let grown = total.saturating_add(desired.saturating_sub(current));
    if grown > most {
        return Err(wasmtime::Error::from(Exceeded(limit)));
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
            capabilities::{Call, HostCalls},
            engine::{Engine, State, trap::explain},
        },
    };

    /// `(module (table 1 funcref) (memory 1) (func (export "grow")
    ///     (loop (drop (table.grow 0 (ref.null func) (i32.const 1000))) (br 0))))`, with `memory.grow` of one page
    /// instead where that is asked for.
    fn grower(memory: bool) -> Vec<u8> {
        let body: &[u8] = match memory {
            true => &[0, 0x03, 0x40, 0x41, 1, 0x40, 0, 0x1a, 0x0c, 0, 0x0b, 0x0b],
            false => &[
                0, 0x03, 0x40, 0xd0, 0x70, 0x41, 0xe8, 0x07, 0xfc, 0x0f, 0, 0x1a, 0x0c, 0, 0x0b, 0x0b,
            ],
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
    async fn memories_and_tables_grow_to_the_limit_and_no_further() {
        let engine = Engine::new(2, 1 << 30, None, None).expect("an engine");
        let limits = Limits {
            memory: 1 << 20,
            table_elements: 5000,
            ..Limits::default()
        };
        for (memory, wanted) in [(true, Trap::Memory(1 << 20)), (false, Trap::Tables(5000))] {
            let terms = PluginPolicy {
                plugin: "p".into(),
                grants: PluginGrants::new("p", "", None, Grant::default()),
                config: Vec::new(),
                limits: limits.clone(),
            };
            let mut store = Store::new(
                &engine.engine,
                State {
                    door: HostCalls(Call::new(Arc::new(terms), None)),
                    allowance: Allowance::new(&limits, Arc::new(Meter::new(engine.turns.clone()))),
                    wasi: None,
                    table: ResourceTable::new(),
                },
            );
            store.limiter_async(|state| &mut state.allowance);
            store.set_epoch_deadline(1 << 40);
            let module = wasmtime::Module::new(&engine.engine, grower(memory)).expect("a module");
            let instance = wasmtime::Instance::new_async(&mut store, &module, &[])
                .await
                .expect("an instance");
            let grow = instance
                .get_typed_func::<(), ()>(&mut store, "grow")
                .expect("a function");
            let error = grow.call_async(&mut store, ()).await.expect_err("it can't");
            assert_eq!(explain(&error, &limits, Duration::ZERO), wanted, "{error:#}");
            let allowance = &store.data().allowance;
            assert!(allowance.memory <= limits.memory && allowance.tables <= 5000);
            assert!(
                allowance.memory == limits.memory || allowance.tables > 4000,
                "it grew before"
            );
        }
    }
}
