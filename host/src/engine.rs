//! WebAssembly: compiles components, and calls them with a fresh instance each time.

mod code;

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
use wasmtime::{
    Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, Store, StoreLimits,
    StoreLimitsBuilder, UpdateDeadline,
    component::{ComponentNamedList, HasSelf, Lift, Linker, Lower},
};
use wasmtime_wasi::{ResourceTable, WasiCtx, WasiCtxView, WasiView};

pub use crate::limits::Limits;
use crate::{
    bindings::{Plugin, PluginPre, reconciler, types},
    capabilities::Call,
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
    #[error("asked for more than {} MiB of memory", .0 >> 20)]
    Memory(usize),
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
            Self::Memory(_) => TrapKind::Memory,
            Self::Other(_) => TrapKind::Other,
        }
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
    pub call: Call,
    limits: StoreLimits,
    /// Made for components that import WASI; the others never ask.
    wasi: Option<WasiCtx>,
    table: ResourceTable,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: self.wasi.get_or_insert_with(|| WasiCtx::builder().build()),
            table: &mut self.table,
        }
    }
}

/// The engine, one per process.
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Linker<State>,
    cache: Option<Cache>,
    /// What another process has to be told to make code for this one.
    alike: Vec<String>,
    inspector: Option<Inspector>,
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
        Plugin::add_to_linker::<_, HasSelf<Call>>(&mut linker, |state: &mut State| &mut state.call)?;
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
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
        call: Call,
        body: impl for<'a> FnOnce(
            &'a Self,
            &'a Compiled,
            &'a mut Store<State>,
        ) -> Pin<Box<dyn Future<Output = wasmtime::Result<T>> + Send + 'a>>,
    ) -> (Result<T, Trap>, Call) {
        let limits = call.limits().clone();
        let wasi = compiled.wasi.then(|| {
            let mut wasi = WasiCtx::builder();
            wasi.stdout(call.output(tracing::Level::INFO))
                .stderr(call.output(tracing::Level::WARN));
            wasi.build()
        });
        let mut store = Store::new(
            &self.engine,
            State {
                call,
                limits: StoreLimitsBuilder::new()
                    .memory_size(limits.memory)
                    .table_elements(limits.table_elements as usize)
                    .instances(64)
                    .memories(8)
                    .tables(32)
                    .trap_on_grow_failure(true)
                    .build(),
                wasi,
                table: ResourceTable::new(),
            },
        );
        store.limiter(|state| &mut state.limits);
        store.set_hostcall_fuel(limits.call_bytes);
        let meter = Arc::new(Meter::default());
        let (metered, cpu) = (meter.clone(), limits.cpu);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            Ok(match metered.used() {
                used if used > cpu => UpdateDeadline::Interrupt,
                // Others get their turn only from a guest that really computes: whoever was called just before
                // the tick has not had its own.
                used if used > TICK => UpdateDeadline::Yield(1),
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
        let mut call = store.into_data().call;
        call.cpu = meter.used();
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

/// Epochs tick while the guest waits for the host, too: what counts is the time spent polling it.
#[derive(Default)]
struct Meter {
    spent: AtomicU64,
    since: std::sync::Mutex<Option<Instant>>,
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
        let polled = self.inner.as_mut().poll(context);
        *self.meter.since.lock().expect("lock") = None;
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.meter.spent.fetch_add(spent, Ordering::Relaxed);
        polled
    }
}

fn explain(error: &wasmtime::Error, limits: &Limits, cpu: Duration) -> Trap {
    let text = format!("{error:#}");
    if cpu > limits.cpu && matches!(error.downcast_ref(), Some(wasmtime::Trap::Interrupt)) {
        return Trap::Cpu(limits.cpu);
    }
    if text.contains("growing memory") || text.contains("memory minimum size") {
        return Trap::Memory(limits.memory);
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

fn config(pool: Option<(u32, usize)>, dump: bool) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.concurrency_support(false);
    config.coredump_on_trap(dump);
    if let Some((concurrency, memory)) = pool {
        let mut pooling = PoolingAllocationConfig::default();
        pooling
            .total_component_instances(concurrency)
            .max_core_instances_per_component(32)
            .total_core_instances(concurrency * 8)
            .total_memories(concurrency * 2)
            .total_tables(concurrency * 8)
            .total_stacks(concurrency)
            .max_memory_size(memory)
            .table_elements(100_000)
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
