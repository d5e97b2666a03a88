//! Pools of permits: semaphores of a plugin, which bound how many of its objects use something at a time.
//!
//! A permit that becomes free is offered to one object: of the namespace with the fewest permits, its oldest one that waits.
//! Only that one is queued, however many wait. An offer that its next reconcile does not take goes to the next.
//!
//! Permits are in memory. In each leader term a pool grants none until the objects that were due at its first request have
//! been reconciled, since they say which permits they hold.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use crate::kube::key::{ObjectMap, ObjectRef};

/// Maximum number of pools of one plugin.
const MAX_POOLS: usize = 64;

/// A request for a permit.
#[derive(Clone, Copy, Debug)]
pub struct PermitRequest<'a> {
    /// The plugin of the object.
    pub plugin: &'a Arc<str>,
    /// The name of the pool.
    pub pool: &'a str,
    /// The object.
    pub object: &'a ObjectRef,
    /// The creation of the object, in RFC 3339.
    pub created: &'a str,
    /// Maximum number of permits of the pool.
    pub limit: u32,
    /// True if the object uses what the permit stands for already: it is granted even beyond the limit.
    pub is_held: bool,
    /// The leader term.
    pub term: u64,
}

/// The error of a request for a permit of one pool too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a plugin has at most {MAX_POOLS} pools of permits")]
pub struct TooManyPools;

/// The state of an object in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitState {
    /// It waits for a permit since its creation, in RFC 3339.
    Waiting(Box<str>),
    /// A permit is reserved for its next reconcile.
    Offered,
    /// It has a permit.
    Held,
}

/// The state of an object in a pool, and the use of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitStatus {
    /// The state of the object.
    pub state: PermitState,
    /// The use of the pool.
    pub usage: PoolUsage,
}

impl fmt::Display for PermitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolUsage {
            pool,
            limit,
            used,
            waiting,
            ..
        } = &self.usage;
        match self.state {
            PermitState::Waiting(_) => write!(f, "waits for one of `{pool}`")?,
            PermitState::Offered => write!(f, "one of `{pool}` at its next reconcile")?,
            PermitState::Held => write!(f, "one of `{pool}`")?,
        }
        write!(f, " ({used} of {limit} in use, {waiting} waiting)")
    }
}

/// The use of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// The plugin.
    pub plugin: Arc<str>,
    /// The name of the pool.
    pub pool: Arc<str>,
    /// Maximum number of permits.
    pub limit: u32,
    /// Number of permits that are held or offered.
    pub used: usize,
    /// Number of objects that wait.
    pub waiting: usize,
}

#[derive(Default)]
struct Pool {
    limit: u32,
    term: u64,
    /// Objects that may hold permits and have not been reconciled in this term.
    unreported: HashSet<ObjectRef>,
    states: ObjectMap<PermitState>,
    /// Number of permits by namespace, without those that have none.
    used: HashMap<Arc<str>, usize>,
    /// Objects that wait by namespace, oldest first.
    waiting: HashMap<Arc<str>, BTreeSet<(Box<str>, ObjectRef)>>,
}

impl Pool {
    fn count_used(&self) -> usize {
        self.used.values().sum()
    }

    fn usage(&self, plugin: &Arc<str>, pool: &Arc<str>) -> PoolUsage {
        PoolUsage {
            plugin: plugin.clone(),
            pool: pool.clone(),
            limit: self.limit,
            used: self.count_used(),
            waiting: self.waiting.values().map(BTreeSet::len).sum(),
        }
    }

    /// Sets or removes the state of an object.
    fn set_state(&mut self, object: &ObjectRef, state: Option<PermitState>) {
        let namespace = &object.namespace;
        match self.states.remove(object) {
            None => {}
            Some(PermitState::Waiting(created)) => {
                if let Some(waiting) = self.waiting.get_mut(namespace) {
                    waiting.remove(&(created, object.clone()));
                    if waiting.is_empty() {
                        self.waiting.remove(namespace);
                    }
                }
            }
            Some(PermitState::Offered | PermitState::Held) => {
                if let Some(used) = self.used.get_mut(namespace) {
                    *used -= 1;
                    if *used == 0 {
                        self.used.remove(namespace);
                    }
                }
            }
        }
        let Some(state) = state else { return };
        match &state {
            PermitState::Waiting(created) => {
                let waiting = self.waiting.entry(namespace.clone()).or_default();
                waiting.insert((created.clone(), object.clone()));
            }
            PermitState::Offered | PermitState::Held => {
                *self.used.entry(namespace.clone()).or_default() += 1;
            }
        }
        self.states.insert(object.clone(), state);
    }

    /// The object that is offered the next permit: of the namespace with the fewest permits, the oldest one.
    fn next_waiter(&self) -> Option<&ObjectRef> {
        let waiting = self.waiting.iter().filter_map(|(namespace, waiting)| {
            let used = self.used.get(namespace).copied().unwrap_or(0);
            Some((used, waiting.first()?))
        });
        waiting.min().map(|(_, (_, object))| object)
    }

    /// Offers the permits that are free, and returns the objects that they are offered to.
    fn offer_permits(&mut self) -> Vec<ObjectRef> {
        let mut offered = Vec::new();
        while self.unreported.is_empty() && self.count_used() < self.limit as usize {
            let Some(object) = self.next_waiter().cloned() else {
                break;
            };
            self.set_state(&object, Some(PermitState::Offered));
            offered.push(object);
        }
        offered
    }
}

/// The pools of all plugins. Each function that may make permits free returns the objects that they are offered to, which
/// have to be queued.
#[derive(Default)]
pub struct PermitPools {
    plugins: HashMap<Arc<str>, HashMap<Arc<str>, Pool>>,
}

impl PermitPools {
    /// Returns true if the object gets the permit, and else lets it wait. `due` are the objects of the plugin that have to be
    /// reconciled, for the first request of a term.
    ///
    /// # Errors
    /// The plugin would have too many pools.
    pub fn acquire(
        &mut self,
        request: &PermitRequest<'_>,
        due: impl FnOnce() -> HashSet<ObjectRef>,
    ) -> Result<(bool, Vec<ObjectRef>), TooManyPools> {
        let object = request.object;
        let pools = self.plugins.entry(request.plugin.clone()).or_default();
        if !pools.contains_key(request.pool) {
            if pools.len() == MAX_POOLS {
                return Err(TooManyPools);
            }
            pools.insert(request.pool.into(), Pool::default());
        }
        let pool = pools.entry(request.pool.into()).or_default();
        if pool.term != request.term {
            pool.term = request.term;
            pool.unreported = due();
            pool.unreported.remove(object);
        }
        pool.limit = request.limit;
        match pool.states.get(object) {
            Some(PermitState::Held) => {}
            Some(PermitState::Waiting(_)) if !request.is_held => {}
            Some(PermitState::Offered) => pool.set_state(object, Some(PermitState::Held)),
            _ if request.is_held => pool.set_state(object, Some(PermitState::Held)),
            _ => pool.set_state(object, Some(PermitState::Waiting(request.created.into()))),
        }
        let mut offered = pool.offer_permits();
        if offered.contains(object) {
            offered.retain(|other| other != object);
            pool.set_state(object, Some(PermitState::Held));
        }
        Ok((pool.states.get(object) == Some(&PermitState::Held), offered))
    }

    /// Returns true if objects of a plugin have requested permits.
    pub fn has_pools(&self, plugin: &str) -> bool {
        self.plugins.contains_key(plugin)
    }

    /// Releases what an object has of a pool.
    pub fn release(&mut self, plugin: &str, pool: &str, object: &ObjectRef) -> Vec<ObjectRef> {
        let pool = self.plugins.get_mut(plugin).and_then(|pools| pools.get_mut(pool));
        let Some(pool) = pool.filter(|pool| pool.states.contains_key(object)) else {
            return Vec::new();
        };
        pool.set_state(object, None);
        pool.offer_permits()
    }

    /// Ends a reconcile of an object. `asked` are the pools that it has asked; none keeps all permits that it holds.
    /// `is_due` tells that it is reconciled again at once: what was offered to it meanwhile remains.
    pub fn end_reconcile(
        &mut self,
        plugin: &str,
        object: &ObjectRef,
        asked: Option<&BTreeSet<Box<str>>>,
        is_due: bool,
    ) -> Vec<ObjectRef> {
        let mut offered = Vec::new();
        let Some(pools) = self.plugins.get_mut(plugin) else {
            return offered;
        };
        for (name, pool) in pools {
            let was_unreported = pool.unreported.remove(object);
            let is_released = match pool.states.get(object) {
                None => false,
                Some(PermitState::Offered) => !is_due,
                Some(_) => asked.is_some_and(|asked| !asked.contains(&**name)),
            };
            if is_released {
                pool.set_state(object, None);
            }
            if is_released || was_unreported {
                offered.extend(pool.offer_permits());
            }
        }
        offered
    }

    /// Removes the pools of a plugin that is unloaded.
    pub fn remove_plugin(&mut self, plugin: &str) {
        self.plugins.remove(plugin);
    }

    /// The state of an object in the pools of its plugin, in order of their names.
    pub fn list_states(&self, plugin: &Arc<str>, object: &ObjectRef) -> Vec<PermitStatus> {
        let pools = self.plugins.get(plugin).into_iter().flatten();
        let states = pools.filter_map(|(name, pool)| {
            Some(PermitStatus {
                state: pool.states.get(object)?.clone(),
                usage: pool.usage(plugin, name),
            })
        });
        let mut states: Vec<_> = states.collect();
        states.sort_by(|a, b| a.usage.pool.cmp(&b.usage.pool));
        states
    }

    /// The use of all pools, in order of their plugins and names.
    pub fn list_usage(&self) -> Vec<PoolUsage> {
        let plugins = self.plugins.iter();
        let pools =
            plugins.flat_map(|(plugin, pools)| pools.iter().map(|(name, pool)| pool.usage(plugin, name)));
        let mut usage: Vec<_> = pools.collect();
        usage.sort_by(|a, b| (&a.plugin, &a.pool).cmp(&(&b.plugin, &b.pool)));
        usage
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use proptest::prelude::*;

    use super::*;
    use crate::kube::key::Gvk;

    fn object(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef::new(Gvk::new("g", "v1", "Step"), namespace, name)
    }

    /// The pools of one plugin, with one pool.
    #[derive(Default)]
    struct Lab {
        pools: PermitPools,
        due: HashSet<ObjectRef>,
        term: u64,
    }

    impl Lab {
        fn ask(&mut self, object: &ObjectRef, limit: u32, is_held: bool) -> (bool, Vec<ObjectRef>) {
            let request = PermitRequest {
                plugin: &"steps".into(),
                pool: "pods",
                object,
                // The names of the tests are in the order of creation.
                created: &object.name,
                limit,
                is_held,
                term: self.term,
            };
            self.pools
                .acquire(&request, || self.due.clone())
                .expect("few pools")
        }

        /// Ends a reconcile that has asked for the permit, or has not.
        fn end(&mut self, object: &ObjectRef, has_asked: bool) -> Vec<ObjectRef> {
            let asked = has_asked.then(|| Box::from("pods")).into_iter().collect();
            self.pools.end_reconcile("steps", object, Some(&asked), false)
        }

        fn used(&self) -> usize {
            self.pools.list_usage()[0].used
        }
    }

    #[test]
    fn freed_permit_is_offered_to_the_oldest_of_the_namespace_with_the_fewest() {
        let mut lab = Lab::default();
        let busy: Vec<_> = (0..4).map(|i| object("busy", &format!("{i}"))).collect();
        let (late, later) = (object("quiet", "8"), object("quiet", "9"));
        assert_eq!(lab.ask(&busy[0], 2, false), (true, vec![]));
        assert_eq!(lab.ask(&busy[1], 2, false), (true, vec![]));
        for waiter in [&busy[3], &busy[2], &later, &late] {
            assert_eq!(lab.ask(waiter, 2, false), (false, vec![]));
            assert!(lab.end(waiter, true).is_empty());
        }
        // "busy" has one permit then, "quiet" none.
        assert_eq!(lab.end(&busy[0], false), slice::from_ref(&late));
        assert_eq!(lab.ask(&late, 2, false), (true, vec![]));
        // One each: the oldest goes first.
        assert_eq!(lab.end(&busy[1], false), [busy[2].clone()]);
        assert_eq!(lab.ask(&busy[2], 2, false), (true, vec![]));
        assert_eq!(lab.end(&late, false), [later]);
    }

    #[test]
    fn offer_that_is_not_taken_goes_to_the_next() {
        let mut lab = Lab::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| object("n", name));
        assert!(lab.ask(&a, 1, false).0);
        assert!(!lab.ask(&b, 1, false).0 && !lab.ask(&c, 1, false).0);
        // It was offered during a reconcile of its own, after which it is due.
        assert_eq!(lab.pools.release("steps", "pods", &a), slice::from_ref(&b));
        assert!(lab.pools.end_reconcile("steps", &b, None, true).is_empty());
        // A reconcile that fails before it asks does not keep it.
        assert_eq!(
            lab.pools.end_reconcile("steps", &b, None, false),
            slice::from_ref(&c)
        );
        assert!(lab.ask(&c, 1, false).0);
        // A permit that is held stays after a failure.
        assert!(lab.pools.end_reconcile("steps", &c, None, false).is_empty());
        assert_eq!(lab.used(), 1);
    }

    #[test]
    fn permits_of_a_new_term_wait_for_those_who_may_hold_some() {
        let mut lab = Lab {
            term: 1,
            ..Lab::default()
        };
        let [running, gone, new] = ["running", "gone", "new"].map(|name| object("n", name));
        lab.due = [&running, &gone, &new].map(Clone::clone).into();
        assert_eq!(lab.ask(&new, 1, false), (false, vec![]));
        assert!(lab.end(&new, true).is_empty());
        assert_eq!(lab.ask(&running, 1, true), (true, vec![]));
        assert!(lab.end(&running, true).is_empty());
        assert!(lab.end(&gone, false).is_empty());
        assert_eq!(lab.end(&running, false), [new]);
    }

    #[test]
    fn object_that_holds_already_is_granted_beyond_the_limit() {
        let mut lab = Lab::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| object("n", name));
        for held in [&a, &b] {
            assert_eq!(lab.ask(held, 1, true), (true, vec![]));
        }
        assert!(!lab.ask(&c, 1, false).0);
        assert!(lab.end(&a, false).is_empty(), "one is still more than none");
        assert_eq!(lab.end(&b, false), [c]);
        assert!(lab.ask(&a, 3, false).0, "a higher limit holds at once");
    }

    #[test]
    fn pools_of_a_plugin_are_bounded() {
        let mut pools = PermitPools::default();
        let (plugin, object) = ("p".into(), object("n", "a"));
        let mut ask = |pool: usize| {
            let request = PermitRequest {
                plugin: &plugin,
                pool: &pool.to_string(),
                object: &object,
                created: "",
                limit: 1,
                is_held: false,
                term: 1,
            };
            pools.acquire(&request, HashSet::new).map(|(granted, _)| granted)
        };
        for pool in 0..MAX_POOLS {
            assert_eq!(ask(pool), Ok(true));
        }
        assert_eq!(ask(MAX_POOLS), Err(TooManyPools));
        assert_eq!(ask(0), Ok(true));
        pools.remove_plugin("p");
        assert!(pools.list_usage().is_empty());
    }

    proptest! {
        /// However objects come, fail and go: never more permits than the limit, and none is free while somebody waits.
        #[test]
        fn permits_are_never_exceeded_nor_wasted(steps in prop::collection::vec((0_usize..12, 0_u8..4), 1..200)) {
            const LIMIT: u32 = 3;
            let mut lab = Lab::default();
            let objects: Vec<_> = (0..12).map(|i| object(&format!("n{}", i % 4), &format!("{i:02}"))).collect();
            for (index, action) in steps {
                let object = &objects[index];
                let mut queued = match action {
                    0 => lab.ask(object, LIMIT, false).1,
                    1 => lab.end(object, false),
                    2 => lab.pools.end_reconcile("steps", object, None, false),
                    _ => lab.pools.release("steps", "pods", object),
                };
                // Whoever is queued asks, as its reconcile does.
                while let Some(woken) = queued.pop() {
                    let (granted, more) = lab.ask(&woken, LIMIT, false);
                    prop_assert!(granted, "an offer is kept");
                    queued.extend(more);
                }
                if let [usage] = &lab.pools.list_usage()[..] {
                    prop_assert!(usage.used <= LIMIT as usize);
                    prop_assert!(usage.waiting == 0 || usage.used == LIMIT as usize);
                }
            }
        }
    }
}
