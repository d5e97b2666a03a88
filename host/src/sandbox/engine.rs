//! WebAssembly: compiles components, and calls them with a fresh instance each time.

mod compile_cache;
mod config;
mod cpu_meter;
mod store_limiter;
mod trap;
mod wasi;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use wasmtime::{
    Store, UpdateDeadline,
    component::{ComponentNamedList, HasSelf, Lift, Linker, Lower},
};
use wasmtime_wasi::{ResourceTable, WasiCtx, WasiCtxView, WasiView};

pub use self::compile_cache::Cache;
use self::{
    config::config,
    cpu_meter::{Meter, Metered},
    store_limiter::Allowance,
    trap::explain,
};
use crate::{
    contract::{
        bindings::{Plugin, PluginPre, reconciler, types},
        trap::Trap,
    },
    sandbox::capabilities::{Call, HostCalls},
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

/// A component, compiled and linked: cheap to instantiate.
pub struct Compiled {
    pre: PluginPre<State>,
    wasi: bool,
}

/// What an instance's store carries.
pub struct State {
    /// The host's side of this call.
    pub door: HostCalls,
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
                tracing::warn!(error = format!("{e:#}"), "instance pool unavailable");
                wasmtime::Engine::new(&config(None))?
            }
        };
        let mut linker = Linker::new(&engine);
        Plugin::add_to_linker::<_, HasSelf<HostCalls>>(&mut linker, |state: &mut State| &mut state.door)?;
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
        let component = compile_cache::component(&self.engine, self.cache.as_ref(), &self.alike, wasm)?;
        let pre = PluginPre::new(self.linker.instantiate_pre(&component)?)?;
        Ok(Compiled { pre, wasi })
    }

    /// Compiles a component for the cache alone.
    pub fn precompile(&self, wasm: &[u8]) -> wasmtime::Result<()> {
        compile_cache::component(&self.engine, self.cache.as_ref(), &self.alike, wasm).map(drop)
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
            // The output of a replay was logged when the call was recorded.
            if !call.mode.is_replay() {
                wasi.stdout(call.output(tracing::Level::INFO))
                    .stderr(call.output(tracing::Level::WARN));
            }
            if let Some(inputs) = call.mode.wasi_inputs() {
                inputs.install(&mut wasi);
            }
            wasi.build()
        });
        let meter = Arc::new(Meter::new(self.turns.clone()));
        let mut store = Store::new(
            &self.engine,
            State {
                door: HostCalls(call),
                allowance: Allowance::new(&limits, meter.clone()),
                wasi,
                table: ResourceTable::new(),
            },
        );
        store.limiter_async(|state| &mut state.allowance);
        store.set_hostcall_fuel(limits.call_bytes);
        let (metered, cpu) = (meter.clone(), limits.cpu_time);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            Ok(match metered.used() {
                used if used > cpu => UpdateDeadline::Interrupt,
                // Only a guest that really computes: whoever was called just before the tick has not had its own.
                used if used > TICK => UpdateDeadline::YieldCustom(1, Box::pin(metered.clone().turn())),
                _ => UpdateDeadline::Continue(1),
            })
        });
        let calling = Metered {
            inner: body(self, compiled, &mut store),
            meter: meter.clone(),
        };
        let result = match tokio::time::timeout(limits.timeout, calling).await {
            Err(_) => Err(Trap::Timeout(limits.timeout)),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) => Err(explain(&e, &limits, meter.used())),
        };
        let large = store.data().allowance.large();
        let end = || store.into_data();
        let State {
            door: HostCalls(mut call),
            allowance,
            ..
        } = match large {
            // What it has touched is wiped.
            true => {
                let inner = Box::pin(async {
                    meter.clone().turn().await;
                    end()
                });
                let meter = meter.clone();
                Metered { inner, meter }.await
            }
            false => end(),
        };
        call.budget.cpu_time = meter.used();
        call.budget.memory = allowance.memory;
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
