//! WebAssembly: compiles components, and calls them with a fresh instance each time.

mod code;
mod wasi;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

pub use code::Cache;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::{
    Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, ResourceLimiter, Store,
    UpdateDeadline,
    component::{ComponentNamedList, HasSelf, Lift, Linker, Lower},
};
use wasmtime_wasi::{ResourceTable, WasiCtx, WasiCtxView, WasiView};

pub use crate::limits::Limits;
use crate::{
    bindings::{Plugin, PluginPre, reconciler, types},
    capabilities::{Call, Door},
    limits::{Bytes, Limit, MOST_TABLE_ELEMENTS},
    metrics::TrapKind,
};

/// How often a running guest is looked at.
const TICK: Duration = Duration::from_millis(10);

/// The interface of the hooks.
const LIFECYCLE: &str = "ostler:plugin/lifecycle@0.1.0";

/// Told the linear memory of each instance after its call. For tests that look for what must not be there.
#[derive(Clone)]
pub struct Inspector(Arc<dyn Fn(&[u8]) + Send + Sync>);

impl Inspector {
    /// Calls this with each memory.
    pub fn new(look: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }
}

impl std::fmt::Debug for Inspector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inspector")
    }
}

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

/// A component, compiled and linked: cheap to instantiate.
pub struct Compiled {
    pre: PluginPre<State>,
    wasi: bool,
}

/// What an instance's store carries.
pub struct State {
    /// The host's side of this call.
    pub door: Door,
    allowance: Allowance,
    /// Made for components that import WASI; the others never ask.
    wasi: Option<WasiCtx>,
    table: ResourceTable,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: self.wasi.get_or_insert_with(|| wasi::nothing().build()),
            table: &mut self.table,
        }
    }
}

/// What the instances of one call may grow to, all their memories and tables together.
struct Allowance {
    memory: usize,
    most_memory: usize,
    tables: usize,
    most_tables: usize,
}

/// More than is allowed.
#[derive(Debug, thiserror::Error)]
#[error("more {} than is allowed", .0.name())]
struct Exceeded(Limit);

impl ResourceLimiter for Allowance {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        own: Option<usize>,
    ) -> wasmtime::Result<bool> {
        grown(
            &mut self.memory,
            self.most_memory,
            Limit::Memory,
            (current, desired, own),
        )
    }

    fn table_growing(
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

/// The engine, one per process.
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Linker<State>,
    cache: Option<Cache>,
    /// What another process has to be told to make code for this one.
    alike: Vec<String>,
    inspector: Option<Inspector>,
    /// Turns of those that compute for long: some cores are always there for the others.
    turns: Arc<Semaphore>,
    stop: Arc<AtomicBool>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// An engine for `concurrency` calls at the same time, of at most `memory` bytes each.
    pub fn new(
        concurrency: u32,
        memory: usize,
        cache: Option<Cache>,
        inspector: Option<Inspector>,
    ) -> wasmtime::Result<Self> {
        let config = |pool| config(pool, inspector.is_some());
        let engine = match wasmtime::Engine::new(&config(Some((concurrency, memory)))) {
            Ok(engine) => engine,
            Err(e) => {
                // Some machines can't reserve that much address space; calls cost a little more there.
                tracing::warn!("no instance pool: {e:#}");
                wasmtime::Engine::new(&config(None))?
            }
        };
        let mut linker = Linker::new(&engine);
        Plugin::add_to_linker::<_, HasSelf<Door>>(&mut linker, |state: &mut State| &mut state.door)?;
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let stop = Arc::new(AtomicBool::new(false));
        let (ticking, ticked) = (stop.clone(), engine.weak());
        // Its own thread: a guest that loops must not be able to keep the clock from ticking.
        std::thread::Builder::new().name("epoch".into()).spawn(move || {
            while !ticking.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                match ticked.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => break,
                }
            }
        })?;
        Ok(Self {
            engine,
            linker,
            cache,
            alike: vec![
                format!("--concurrency={concurrency}"),
                format!("--memory={memory}"),
            ],
            inspector,
            turns: Arc::new(Semaphore::new((cores / 2).max(1))),
            stop,
        })
    }

    /// Compiles and links a component; from the cache where it was compiled before. Blocks: minutes of
    /// code take seconds.
    pub fn compile(&self, wasm: &[u8], wasi: bool) -> wasmtime::Result<Compiled> {
        let component = code::component(&self.engine, self.cache.as_ref(), &self.alike, wasm)?;
        let pre = PluginPre::new(self.linker.instantiate_pre(&component)?)?;
        Ok(Compiled { pre, wasi })
    }

    /// Compiles a component for the cache alone.
    pub fn precompile(&self, wasm: &[u8]) -> wasmtime::Result<()> {
        code::component(&self.engine, self.cache.as_ref(), &self.alike, wasm).map(drop)
    }

    /// Asks a component what it is.
    pub async fn describe(&self, compiled: &Compiled, call: Call) -> Result<reconciler::Descriptor, Trap> {
        let (result, _) = self
            .run(compiled, call, |engine, compiled, store| {
                Box::pin(async move {
                    let plugin = compiled.pre.instantiate_async(&mut *store).await?;
                    let answer = plugin.ostler_plugin_reconciler().call_describe(&mut *store).await;
                    engine.inspect(&plugin, store).await;
                    answer
                })
            })
            .await;
        result
    }

    /// Calls `reconcile`, or `cleanup` for an object being deleted. Gives the call back with what it recorded.
    pub async fn reconcile(
        &self,
        compiled: &Compiled,
        call: Call,
        request: reconciler::Request,
        deleting: bool,
    ) -> (
        Result<Result<reconciler::Outcome, reconciler::Failure>, Trap>,
        Call,
    ) {
        self.run(compiled, call, move |engine, compiled, store| {
            Box::pin(async move {
                let plugin = compiled.pre.instantiate_async(&mut *store).await?;
                let guest = plugin.ostler_plugin_reconciler();
                let answer = if deleting {
                    guest.call_cleanup(&mut *store, &request).await
                } else {
                    guest.call_reconcile(&mut *store, &request).await
                };
                engine.inspect(&plugin, store).await;
                answer
            })
        })
        .await
    }

    /// Calls the hook `initialize`.
    pub async fn initialize(
        &self,
        compiled: &Compiled,
        call: Call,
    ) -> Result<Result<(), types::Error>, Trap> {
        self.hook(compiled, call, "initialize", ()).await
    }

    /// Calls the hook `upgrade` with an object.
    pub async fn upgrade(
        &self,
        compiled: &Compiled,
        call: Call,
        object: Vec<u8>,
    ) -> Result<Result<Option<Vec<u8>>, types::Error>, Trap> {
        self.hook(compiled, call, "upgrade", (object,)).await
    }

    /// Calls a function that not every plugin has: found by its name, its type was compared before.
    async fn hook<P, T>(
        &self,
        compiled: &Compiled,
        call: Call,
        function: &'static str,
        parameters: P,
    ) -> Result<T, Trap>
    where
        P: ComponentNamedList + Lower + Send + Sync + 'static,
        T: Lift + Send + Sync + 'static,
        (T,): ComponentNamedList + Lift,
    {
        let (result, _) = self
            .run(compiled, call, move |_, compiled, store| {
                Box::pin(async move {
                    let instance = compiled.pre.instance_pre().instantiate_async(&mut *store).await?;
                    let export = instance
                        .get_export_index(&mut *store, None, LIFECYCLE)
                        .and_then(|hooks| instance.get_export_index(&mut *store, Some(&hooks), function))
                        .ok_or_else(|| wasmtime::format_err!("it exports no {LIFECYCLE}#{function}"))?;
                    let hook = instance.get_typed_func::<P, (T,)>(&mut *store, export)?;
                    let (answer,) = hook.call_async(&mut *store, parameters).await?;
                    Ok(answer)
                })
            })
            .await;
        result
    }

    /// One call in a fresh instance. Whatever happens, the store is dropped after it.
    async fn run<T>(
        &self,
        compiled: &Compiled,
        mut call: Call,
        body: impl for<'a> FnOnce(
            &'a Self,
            &'a Compiled,
            &'a mut Store<State>,
        ) -> Pin<Box<dyn Future<Output = wasmtime::Result<T>> + Send + 'a>>,
    ) -> (Result<T, Trap>, Call) {
        let limits = call.limits().clone();
        let wasi = compiled.wasi.then(|| {
            let mut wasi = wasi::nothing();
            // What was printed once is not printed again.
            if !call.tape.plays() {
                wasi.stdout(call.output(tracing::Level::INFO))
                    .stderr(call.output(tracing::Level::WARN));
            }
            if let Some(surroundings) = call.tape.surroundings() {
                surroundings.surround(&mut wasi);
            }
            wasi.build()
        });
        let mut store = Store::new(
            &self.engine,
            State {
                door: Door(call),
                allowance: Allowance {
                    memory: 0,
                    most_memory: limits.memory,
                    tables: 0,
                    most_tables: limits.table_elements as usize,
                },
                wasi,
                table: ResourceTable::new(),
            },
        );
        store.limiter(|state| &mut state.allowance);
        store.set_hostcall_fuel(limits.call_bytes);
        let meter = Arc::new(Meter::default());
        let (metered, cpu, turns) = (meter.clone(), limits.cpu, self.turns.clone());
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            Ok(match metered.used() {
                used if used > cpu => UpdateDeadline::Interrupt,
                // Only a guest that really computes: whoever was called just before the tick has not had its own.
                used if used > TICK => {
                    UpdateDeadline::YieldCustom(1, Box::pin(turn(turns.clone(), metered.clone())))
                }
                _ => UpdateDeadline::Continue(1),
            })
        });
        let calling = Metered {
            inner: body(self, compiled, &mut store),
            meter: meter.clone(),
        };
        let result = match tokio::time::timeout(limits.wall, calling).await {
            Err(_) => Err(Trap::Wall(limits.wall)),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) => Err(explain(&e, &limits, meter.used())),
        };
        let State {
            door: Door(mut call),
            allowance,
            ..
        } = store.into_data();
        call.cpu = meter.used();
        call.memory = allowance.memory;
        (result, call)
    }

    /// The memories of a component can be had from a core dump, and a core dump from a trap: one more call,
    /// with no time at all.
    async fn inspect(&self, plugin: &Plugin, store: &mut Store<State>) {
        let Some(inspector) = &self.inspector else { return };
        store.epoch_deadline_trap();
        store.set_epoch_deadline(0);
        let trapped = plugin.ostler_plugin_reconciler().call_describe(&mut *store).await;
        if let Some(dump) = trapped
            .err()
            .and_then(|e| e.downcast::<wasmtime::WasmCoreDump>().ok())
        {
            for memory in dump.memories() {
                inspector.0(memory.data(&*store));
            }
        }
    }
}

/// Lets others run, then waits for a turn to compute on. It is given back when the guest is next polled to its end.
async fn turn(turns: Arc<Semaphore>, meter: Arc<Meter>) {
    tokio::task::yield_now().await;
    // It is never closed.
    let turn = turns.acquire_owned().await.ok();
    *meter.turn.lock().expect("lock") = turn;
}

/// Epochs tick while the guest waits for the host, too: what counts is the time spent polling it.
#[derive(Default)]
struct Meter {
    spent: AtomicU64,
    since: std::sync::Mutex<Option<Instant>>,
    /// Held while a guest that computes for long does.
    turn: std::sync::Mutex<Option<OwnedSemaphorePermit>>,
}

impl Meter {
    fn used(&self) -> Duration {
        let running = self
            .since
            .lock()
            .expect("lock")
            .map_or(Duration::ZERO, |since| since.elapsed());
        Duration::from_nanos(self.spent.load(Ordering::Relaxed)) + running
    }
}

struct Metered<'a, T> {
    inner: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    meter: Arc<Meter>,
}

impl<T> Future for Metered<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let start = Instant::now();
        *self.meter.since.lock().expect("lock") = Some(start);
        let long = self.meter.spent.load(Ordering::Relaxed) > TICK.as_nanos() as u64;
        let polled = match long && many_threads() {
            // What else this thread would run is run by another meanwhile.
            true => tokio::task::block_in_place(|| self.inner.as_mut().poll(context)),
            false => self.inner.as_mut().poll(context),
        };
        *self.meter.since.lock().expect("lock") = None;
        drop(self.meter.turn.lock().expect("lock").take());
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.meter.spent.fetch_add(spent, Ordering::Relaxed);
        polled
    }
}

fn many_threads() -> bool {
    let here = tokio::runtime::Handle::try_current();
    here.is_ok_and(|h| h.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread)
}

fn explain(error: &wasmtime::Error, limits: &Limits, cpu: Duration) -> Trap {
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

/// Core instances, and tables, of one component.
const INSTANCES: u32 = 32;
/// Linear memories of one component.
const MEMORIES: u32 = 2;
/// Elements of one table.
const TABLE: usize = MOST_TABLE_ELEMENTS as usize;

fn config(pool: Option<(u32, usize)>, dump: bool) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.concurrency_support(false);
    config.coredump_on_trap(dump);
    if let Some((concurrency, memory)) = pool {
        let mut pooling = PoolingAllocationConfig::default();
        pooling
            .total_component_instances(concurrency)
            // All that one may have, for all at once: nobody's call fails because another took what there is.
            .max_core_instances_per_component(INSTANCES)
            .total_core_instances(concurrency * INSTANCES)
            .max_memories_per_component(MEMORIES)
            .total_memories(concurrency * MEMORIES)
            .max_tables_per_component(INSTANCES)
            .total_tables(concurrency * INSTANCES)
            .total_stacks(concurrency)
            .max_memory_size(memory)
            .table_elements(TABLE)
            // What a call has touched is wiped, not given back to the system: that costs more than the call.
            // Where the kernel tells what was touched (6.7 and later) only that is wiped.
            .pagemap_scan(Enabled::Auto)
            .linear_memory_keep_resident(if PoolingAllocationConfig::is_pagemap_scan_available() {
                1 << 20
            } else {
                64 << 10
            })
            .async_stack_keep_resident(64 << 10)
            .table_keep_resident(16 << 10);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling));
    }
    config
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        capabilities::Terms,
        grants::{Grant, PluginGrants},
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
            let terms = Terms {
                plugin: "p".into(),
                grants: PluginGrants::new("p", "", None, Grant::default()),
                config: Vec::new(),
                limits: limits.clone(),
            };
            let mut store = Store::new(
                &engine.engine,
                State {
                    door: Door(Call::new(Arc::new(terms), None)),
                    allowance: Allowance {
                        memory: 0,
                        most_memory: limits.memory,
                        tables: 0,
                        most_tables: limits.table_elements as usize,
                    },
                    wasi: None,
                    table: ResourceTable::new(),
                },
            );
            store.limiter(|state| &mut state.allowance);
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
