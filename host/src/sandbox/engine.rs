//! The WebAssembly engine, which compiles components and calls them, each call in a fresh instance.

mod code_folder;
mod compile_cache;
mod compiled;
mod config;
mod cpu_meter;
mod epoch_ticker;
#[cfg(feature = "dev")]
mod function_cache;
mod store_limiter;
mod trap;
mod wasi;

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::{
    Store, UpdateDeadline,
    component::{Component, ComponentNamedList, HasSelf, Instance, Lift, Linker, Lower, TypedFunc},
};
use wasmtime_wasi::{ResourceTable, WasiCtx, WasiCtxView, WasiView};

#[cfg(feature = "dev")]
pub use self::function_cache::FunctionCache;
pub use self::{compile_cache::CompileCache, compiled::Compiled};
use self::{
    compile_cache::LoadedComponent,
    compiled::{Export, LinkedCode},
    config::{PoolSize, build_config},
    cpu_meter::{CpuMeter, MeteredFuture},
    epoch_ticker::EpochTicker,
    store_limiter::StoreLimiter,
    trap::classify_trap,
};
use crate::{
    contract::{
        bindings::{
            Plugin, PluginPre,
            messages::{Delivery, Disposition},
            reconciler, types,
        },
        limits::PluginLimits,
        memory_budget::{MemoryBudget, MemoryLease},
        trap::Trap,
    },
    observe::log_ring::LogLevel,
    sandbox::{
        allocator::release_free_memory,
        capabilities::{HostCalls, PluginCall},
    },
};

/// Interval of epochs, at which the CPU time of running components is checked.
const EPOCH_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of WASI resources (streams, pollables) of one call.
const MAX_RESOURCES: usize = 10_000;

/// Maximum number of components that are compiled at the same time.
const MAX_COMPILERS: usize = 2;

/// A callback with the linear memory of each instance after its call, for tests that search it for secrets.
#[derive(Clone)]
pub struct Inspector(Arc<dyn Fn(&[u8]) + Send + Sync>);

impl Inspector {
    /// An inspector that calls this with each memory.
    pub fn new(inspect: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(inspect))
    }
}

impl std::fmt::Debug for Inspector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inspector")
    }
}

/// The data in the store of an instance.
pub struct StoreState {
    /// The host functions of this call.
    pub host_calls: HostCalls,
    limiter: StoreLimiter,
    /// None for components that do not import WASI.
    wasi: Option<WasiCtx>,
    table: ResourceTable,
}

impl WasiView for StoreState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: self
                .wasi
                .get_or_insert_with(|| wasi::build_empty_context().build()),
            table: &mut self.table,
        }
    }
}

/// The engine, one per process.
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Linker<StoreState>,
    cache: Option<CompileCache>,
    /// The components whose code may be unloaded.
    components: Mutex<Vec<Weak<Compiled>>>,
    /// Arguments with which a child process compiles code for this engine.
    compiler_arguments: Vec<String>,
    inspector: Option<Inspector>,
    /// Permits of calls that compute for long, fewer than there are cores, so that some are free for short calls.
    permits: Arc<Semaphore>,
    /// Permits of instances, as many as the pool has.
    instances: Arc<Semaphore>,
    budget: Arc<MemoryBudget>,
    /// Permits of compilers.
    compilers: Arc<Semaphore>,
    epochs: EpochTicker,
}

impl Engine {
    /// An engine for `concurrency` concurrent calls with at most `memory` bytes of memory each.
    pub fn new(
        concurrency: u32,
        memory: usize,
        cache: Option<CompileCache>,
        inspector: Option<Inspector>,
    ) -> wasmtime::Result<Self> {
        Self::build(concurrency, memory, cache, inspector, |_| Ok(()))
    }

    /// An engine like [`Engine::new`] that compiles only the functions of a component which the cache does not have.
    #[cfg(feature = "dev")]
    pub fn with_function_cache(
        concurrency: u32,
        memory: usize,
        functions: &FunctionCache,
        inspector: Option<Inspector>,
    ) -> wasmtime::Result<Self> {
        Self::build(concurrency, memory, None, inspector, |config| {
            functions.enable(config)
        })
    }

    fn build(
        concurrency: u32,
        memory: usize,
        cache: Option<CompileCache>,
        inspector: Option<Inspector>,
        configure: impl Fn(&mut wasmtime::Config) -> wasmtime::Result<()>,
    ) -> wasmtime::Result<Self> {
        let new_engine = |pool| {
            let mut config = build_config(pool, inspector.is_some());
            configure(&mut config)?;
            wasmtime::Engine::new(&config)
        };
        let engine = match new_engine(Some(PoolSize { concurrency, memory })) {
            Ok(engine) => engine,
            Err(e) => {
                // Some machines can't reserve that much address space. Calls take a little longer without the pool.
                tracing::warn!(error = format!("{e:#}"), "instance pool unavailable");
                new_engine(None)?
            }
        };
        let mut linker = Linker::new(&engine);
        Plugin::add_to_linker::<_, HasSelf<HostCalls>>(&mut linker, |state: &mut StoreState| {
            &mut state.host_calls
        })?;
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let weak_engine = engine.weak();
        let epochs = EpochTicker::start(move || {
            let engine = weak_engine.upgrade();
            engine.map(|engine| engine.increment_epoch()).is_some()
        })?;
        Ok(Self {
            engine,
            linker,
            cache,
            components: Mutex::default(),
            compiler_arguments: vec![
                format!("--concurrency={concurrency}"),
                format!("--memory={memory}"),
            ],
            inspector,
            permits: Arc::new(Semaphore::new((cores / 2).max(1))),
            instances: Arc::new(Semaphore::new(concurrency as usize)),
            budget: MemoryBudget::unlimited(),
            compilers: Arc::new(Semaphore::new(MAX_COMPILERS.min(cores / 2).max(1))),
            epochs,
        })
    }

    /// Bounds the memory of all calls together.
    pub fn with_memory_budget(mut self, budget: Arc<MemoryBudget>) -> Self {
        self.budget = budget;
        self
    }

    /// The memory of all calls together.
    pub fn memory_budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Compiles and links a component, or loads its code from the cache. It blocks for seconds if the component is large.
    pub fn compile(&self, wasm: &[u8], wasi: bool) -> wasmtime::Result<Arc<Compiled>> {
        let loaded = compile_cache::load_or_compile(
            &self.engine,
            self.cache.as_ref(),
            &self.compiler_arguments,
            wasm,
        )?;
        self.add_component(loaded, wasi)
    }

    /// Loads a component from the cache, or compiles it once a compiler is free: each takes memory beside the host's.
    pub async fn compile_in_turn(
        self: &Arc<Self>,
        wasm: Vec<u8>,
        wasi: bool,
    ) -> wasmtime::Result<Arc<Compiled>> {
        let engine = self.clone();
        let cached = tokio::task::spawn_blocking(move || {
            let cached = compile_cache::load_cached(&engine.engine, engine.cache.as_ref(), &wasm);
            (cached, wasm)
        });
        let wasm = match cached.await? {
            (Some(loaded), _) => return self.add_component(loaded, wasi),
            (None, wasm) => wasm,
        };
        // The semaphore is never closed.
        let permit = self.compilers.clone().acquire_owned().await?;
        let engine = self.clone();
        // The permit goes with the compiler, which an aborted load does not end.
        let compile = move || {
            let _permit = permit;
            engine.compile(&wasm, wasi)
        };
        tokio::task::spawn_blocking(compile).await?
    }

    fn add_component(
        &self,
        (component, file): LoadedComponent,
        wasi: bool,
    ) -> wasmtime::Result<Arc<Compiled>> {
        let compiled = Arc::new(Compiled::new(self.link(&component)?, file, wasi));
        let mut components = self.components.lock();
        components.retain(|component| component.strong_count() > 0);
        components.push(Arc::downgrade(&compiled));
        Ok(compiled)
    }

    fn link(&self, component: &Component) -> wasmtime::Result<LinkedCode> {
        let pre = PluginPre::new(self.linker.instantiate_pre(component)?)?;
        Ok(LinkedCode::new(pre, component))
    }

    /// Unloads the code of components that were not called for this time, and with it the instances that are kept warm. The next
    /// call loads it again, which takes milliseconds. Returns the number of components that were unloaded.
    pub fn unload_idle(&self, idle: Duration) -> usize {
        let components: Vec<_> = self.components.lock().iter().filter_map(Weak::upgrade).collect();
        let unloaded = components
            .iter()
            .filter(|component| component.unload_idle(idle))
            .count();
        if unloaded > 0 {
            release_free_memory();
        }
        unloaded
    }

    /// Loads code that was unloaded.
    async fn load_again(&self, compiled: &Compiled) -> wasmtime::Result<Arc<LinkedCode>> {
        let _loading = compiled.loading.lock().await;
        if let Some(code) = compiled.code.load_full() {
            return Ok(code);
        }
        let file = compiled.file.clone();
        let file = file.ok_or_else(|| wasmtime::format_err!("it has no file in the cache"))?;
        let engine = self.engine.clone();
        let component = tokio::task::spawn_blocking(move || file.load(&engine)).await??;
        let code = Arc::new(self.link(&component)?);
        compiled.code.store(Some(code.clone()));
        Ok(code)
    }

    /// Compiles a component for the cache only.
    pub fn precompile(&self, wasm: &[u8]) -> wasmtime::Result<()> {
        compile_cache::load_or_compile(&self.engine, self.cache.as_ref(), &self.compiler_arguments, wasm)
            .map(drop)
    }

    /// Calls `describe`, which a component is loaded with: the types of all functions of its reconciler are checked.
    pub async fn describe(
        &self,
        compiled: &Compiled,
        call: Box<PluginCall>,
    ) -> Result<reconciler::Descriptor, Trap> {
        let (result, _) = self
            .run_call(compiled, call, |engine, code, store| {
                Box::pin(async move {
                    let instance = code.pre.instance_pre().instantiate_async(&mut *store).await?;
                    let plugin = Plugin::new(&mut *store, &instance)?;
                    let answer = plugin.ostler_plugin_reconciler().call_describe(&mut *store).await;
                    engine.inspect(code, &instance, store).await;
                    answer
                })
            })
            .await;
        result
    }

    /// Calls `reconcile`, or `cleanup` for an object that is being deleted. Returns the call with its effects.
    pub fn reconcile<'a>(
        &'a self,
        compiled: &'a Compiled,
        call: Box<PluginCall>,
        request: reconciler::Request,
        deleting: bool,
    ) -> impl Future<
        Output = (
            Result<Result<reconciler::Outcome, reconciler::Failure>, Trap>,
            Box<PluginCall>,
        ),
    > + Send
    + 'a {
        let export = if deleting {
            Export::Cleanup
        } else {
            Export::Reconcile
        };
        self.call_export(compiled, call, export, (request,))
    }

    /// Calls the hook `initialize`.
    pub async fn initialize(
        &self,
        compiled: &Compiled,
        call: Box<PluginCall>,
    ) -> Result<Result<(), types::Error>, Trap> {
        let (result, _) = self.call_export(compiled, call, Export::Initialize, ()).await;
        result
    }

    /// Calls the hook `upgrade` with an object.
    pub async fn upgrade(
        &self,
        compiled: &Compiled,
        call: Box<PluginCall>,
        object: Vec<u8>,
    ) -> Result<Result<Option<Vec<u8>>, types::Error>, Trap> {
        let (result, _) = self.call_export(compiled, call, Export::Upgrade, (object,)).await;
        result
    }

    /// Calls `messages.handle`. Returns the call with its effects.
    pub fn handle<'a>(
        &'a self,
        compiled: &'a Compiled,
        call: Box<PluginCall>,
        delivery: Delivery,
    ) -> impl Future<Output = (Result<Result<Disposition, types::Error>, Trap>, Box<PluginCall>)> + Send + 'a
    {
        self.call_export(compiled, call, Export::Handle, (delivery,))
    }

    /// Calls one exported function of a fresh instance. Only its type is compared again, since the types of all were when the
    /// component was loaded. No async function, like its callers: each would hold the parameters again.
    fn call_export<'a, P, T>(
        &'a self,
        compiled: &'a Compiled,
        call: Box<PluginCall>,
        export: Export,
        parameters: P,
    ) -> impl Future<Output = (Result<T, Trap>, Box<PluginCall>)> + Send + 'a
    where
        P: ComponentNamedList + Lower + Send + Sync + 'static,
        T: Lift + Send + Sync + 'static,
        (T,): ComponentNamedList + Lift,
    {
        self.run_call(compiled, call, move |engine, code, store| {
            Box::pin(async move {
                let instance = code.pre.instance_pre().instantiate_async(&mut *store).await?;
                let function: TypedFunc<P, (T,)> = code.find_function(export, &instance, store)?;
                let answer = function.call_async(&mut *store, parameters).await;
                engine.inspect(code, &instance, store).await;
                let (answer,) = answer?;
                Ok(answer)
            })
        })
    }

    /// Waits for a free instance of the pool, at most for the timeout of the call.
    async fn reserve_instance(&self, limits: &PluginLimits) -> Result<OwnedSemaphorePermit, Trap> {
        let instances = self.instances.clone();
        if let Ok(instance) = instances.clone().try_acquire_owned() {
            return Ok(instance);
        }
        let reserved = tokio::time::timeout(limits.timeout, instances.acquire_owned()).await;
        let exhausted = || Trap::HostExhausted("all instances of the pool are in use".into());
        // The semaphore is never closed.
        reserved.ok().and_then(Result::ok).ok_or_else(exhausted)
    }

    /// Runs a call in a fresh instance. The store is dropped after it in any case.
    async fn run_call<T>(
        &self,
        compiled: &Compiled,
        mut call: Box<PluginCall>,
        body: impl for<'a> FnOnce(
            &'a Self,
            &'a LinkedCode,
            &'a mut Store<StoreState>,
        ) -> Pin<Box<dyn Future<Output = wasmtime::Result<T>> + Send + 'a>>
        + Send,
    ) -> (Result<T, Trap>, Box<PluginCall>) {
        compiled.mark_call();
        // Without a count of references, which all calls of a plugin would write to.
        let loaded = compiled.code.load();
        let loaded_again;
        let code = match &*loaded {
            Some(code) => code,
            None => match self.load_again(compiled).await {
                Ok(code) => {
                    loaded_again = code;
                    &loaded_again
                }
                Err(e) => {
                    let why = format!("the compiled code can't be loaded again: {e:#}");
                    return (Err(Trap::HostExhausted(why)), call);
                }
            },
        };
        let limits = call.limits().clone();
        let _instance = match self.reserve_instance(&limits).await {
            Ok(instance) => instance,
            Err(exhausted) => return (Err(exhausted), call),
        };
        let _running = self.epochs.begin_call();
        let lease = self.budget.lease();
        call.memory = lease.clone();
        let wasi = compiled.wasi.then(|| build_wasi_context(&mut call));
        let meter = Arc::new(CpuMeter::new(self.permits.clone()));
        let state = StoreState {
            host_calls: HostCalls(call),
            limiter: StoreLimiter::new(&limits, meter.clone(), lease.clone()),
            wasi,
            table: build_resource_table(),
        };
        let mut store = self.build_store(state, &limits, &meter);
        let calling = MeteredFuture {
            inner: body(self, code, &mut store),
            meter: meter.clone(),
        };
        let result = match tokio::time::timeout(limits.timeout, calling).await {
            Err(_) if lease.is_short() => Err(Trap::HostExhausted(format!(
                "no memory of the budget (--memory-budget) came free within {:?}",
                limits.timeout
            ))),
            Err(_) => Err(Trap::Timeout(limits.timeout)),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) => Err(classify_trap(&e, &limits, meter.cpu_time())),
        };
        let StoreState {
            host_calls: HostCalls(mut call),
            limiter,
            ..
        } = drop_store(store, &meter).await;
        call.budget.cpu_time = meter.cpu_time();
        call.budget.memory = limiter.memory;
        let result = match result {
            Err(Trap::Other(cause)) => Err(call.explain_trap(cause)),
            result => {
                call.log_panic_report();
                result
            }
        };
        // The memories are gone; what is left of the call does not count.
        call.memory = MemoryLease::unlimited();
        (result, call)
    }

    /// Builds the store of a call, with its limits of memory, CPU time and bytes.
    fn build_store(
        &self,
        state: StoreState,
        limits: &PluginLimits,
        meter: &Arc<CpuMeter>,
    ) -> Store<StoreState> {
        let mut store = Store::new(&self.engine, state);
        store.limiter_async(|state| &mut state.limiter);
        store.set_hostcall_fuel(limits.call_bytes);
        let (meter, max_cpu_time) = (meter.clone(), limits.cpu_time);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            Ok(match meter.cpu_time() {
                used if used > max_cpu_time => UpdateDeadline::Interrupt,
                // A component that was called just before the epoch has not computed for a whole interval and goes on.
                used if used > EPOCH_INTERVAL => {
                    UpdateDeadline::YieldCustom(1, Box::pin(meter.clone().acquire_permit()))
                }
                _ => UpdateDeadline::Continue(1),
            })
        });
        store
    }

    /// Passes the memories of a component to the inspector. They are in a core dump, and a trap yields a core dump, so a
    /// further call without any time is made.
    async fn inspect(&self, code: &LinkedCode, instance: &Instance, store: &mut Store<StoreState>) {
        let Some(inspector) = &self.inspector else { return };
        store.epoch_deadline_trap();
        store.set_epoch_deadline(0);
        let describe: TypedFunc<(), (reconciler::Descriptor,)> = code
            .find_function(Export::Describe, instance, store)
            .expect("it was described");
        let trapped = describe.call_async(&mut *store, ()).await;
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

/// Builds the table of a call's WASI resources.
fn build_resource_table() -> ResourceTable {
    let mut table = ResourceTable::new();
    table.set_max_capacity(MAX_RESOURCES);
    table
}

/// Builds the WASI context of a component that imports it: logged output, and the clocks and randomness of the call.
fn build_wasi_context(call: &mut PluginCall) -> WasiCtx {
    let mut wasi = wasi::build_empty_context();
    // The output of a replay was logged when the call was recorded.
    if !call.mode.is_replay() {
        wasi.stdout(call.output(LogLevel::Info))
            .stderr(call.output(LogLevel::Warn));
    }
    if let Some(inputs) = call.mode.wasi_inputs() {
        inputs.install(&mut wasi);
    }
    wasi.build()
}

/// Drops a store and returns its data. Dropping it zeroes the pages that were touched, so many pages need a permit.
async fn drop_store(store: Store<StoreState>, meter: &Arc<CpuMeter>) -> StoreState {
    if !store.data().limiter.needs_permit() {
        return store.into_data();
    }
    let inner = Box::pin(async {
        meter.clone().acquire_permit().await;
        store.into_data()
    });
    let meter = meter.clone();
    MeteredFuture { inner, meter }.await
}
