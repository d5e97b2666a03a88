//! The code of a component, which is unloaded when it was not called for a while, and loaded again by the next call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use wasmtime::{
    Store,
    component::{Component, ComponentExportIndex, ComponentNamedList, Instance, Lift, Lower, TypedFunc},
};

use super::{StoreState, compile_cache::CodeFile};
use crate::contract::bindings::PluginPre;

/// An exported function of a component.
#[derive(Clone, Copy, Debug)]
pub(super) enum Export {
    Describe,
    Reconcile,
    Cleanup,
    Initialize,
    Upgrade,
    Handle,
}

impl Export {
    /// All of them, in the order of their declaration.
    const ALL: [Self; 6] = [
        Self::Describe,
        Self::Reconcile,
        Self::Cleanup,
        Self::Initialize,
        Self::Upgrade,
        Self::Handle,
    ];

    /// The interface and the function.
    fn path(self) -> (&'static str, &'static str) {
        const RECONCILER: &str = "ostler:plugin/reconciler@0.1.0";
        const LIFECYCLE: &str = "ostler:plugin/lifecycle@0.1.0";
        const MESSAGES: &str = "ostler:plugin/messages@0.1.0";
        match self {
            Self::Describe => (RECONCILER, "describe"),
            Self::Reconcile => (RECONCILER, "reconcile"),
            Self::Cleanup => (RECONCILER, "cleanup"),
            Self::Initialize => (LIFECYCLE, "initialize"),
            Self::Upgrade => (LIFECYCLE, "upgrade"),
            Self::Handle => (MESSAGES, "handle"),
        }
    }

    /// The index of this function in a component; none if it does not export it.
    fn find_index(self, component: &Component) -> Option<ComponentExportIndex> {
        let (interface, function) = self.path();
        let interface = component.get_export_index(None, interface)?;
        component.get_export_index(Some(&interface), function)
    }
}

/// Loaded and linked code of a component, which is cheap to instantiate.
pub(super) struct LinkedCode {
    pub pre: PluginPre<StoreState>,
    /// The functions of [`Export`], in its order.
    exports: [Option<ComponentExportIndex>; Export::ALL.len()],
}

impl LinkedCode {
    pub fn new(pre: PluginPre<StoreState>, component: &Component) -> Self {
        let exports = Export::ALL.map(|export| export.find_index(component));
        Self { pre, exports }
    }

    /// An exported function of an instance of this component.
    pub fn find_function<P, R>(
        &self,
        export: Export,
        instance: &Instance,
        store: &mut Store<StoreState>,
    ) -> wasmtime::Result<TypedFunc<P, R>>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift,
    {
        let index = self.exports[export as usize].ok_or_else(|| {
            let (interface, function) = export.path();
            wasmtime::format_err!("it exports no {interface}#{function}")
        })?;
        instance.get_typed_func(store, index)
    }
}

/// A compiled component.
pub struct Compiled {
    /// None while the code is unloaded.
    pub(super) code: ArcSwapOption<LinkedCode>,
    /// Where unloaded code is loaded from. Code without a file stays.
    pub(super) file: Option<Arc<CodeFile>>,
    /// Held while code is loaded, so that calls that arrive together load it once.
    pub(super) loading: tokio::sync::Mutex<()>,
    /// The component imports WASI.
    pub(super) wasi: bool,
    created: Instant,
    /// Seconds from `created` until the last call, rounded up.
    last_call: AtomicU64,
}

impl Compiled {
    pub(super) fn new(code: LinkedCode, file: Option<CodeFile>, wasi: bool) -> Self {
        Self {
            code: ArcSwapOption::from_pointee(code),
            file: file.map(Arc::new),
            loading: tokio::sync::Mutex::default(),
            wasi,
            created: Instant::now(),
            last_call: AtomicU64::new(0),
        }
    }

    /// Returns false while the code is unloaded.
    pub fn is_loaded(&self) -> bool {
        self.code.load().is_some()
    }

    /// Records that the component is called.
    pub(super) fn mark_call(&self) {
        let now = self.created.elapsed().as_secs() + 1;
        // A write would take the cache line from the other cores in each call.
        if self.last_call.load(Ordering::Relaxed) != now {
            self.last_call.store(now, Ordering::Relaxed);
        }
    }

    /// Unloads code that can be loaded again if no call has begun for this time. Running calls keep it until they end.
    /// Returns true if it was loaded.
    pub(super) fn unload_idle(&self, idle: Duration) -> bool {
        let last_call = Duration::from_secs(self.last_call.load(Ordering::Relaxed));
        let is_idle = self.created.elapsed() >= last_call + idle;
        is_idle && self.file.is_some() && self.code.swap(None).is_some()
    }
}
