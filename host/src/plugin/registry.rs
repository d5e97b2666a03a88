//! Which build of which plugin serves, which it would go back to, and which serves beside it.

mod report;

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

pub use self::report::{CanaryReport, Report};
use super::{
    Plugin, Refusal,
    canary_selector::Choice,
    health::{Ending, Verdict},
};
use crate::{
    contract::limits::Limits,
    kube::{key::Gvk, object::Object},
    policy::grants::Grants,
};

/// What the slot of a `Plugin` object is called. No file has a name like that.
pub fn of_object(name: &str) -> String {
    format!("Plugin/{name}")
}

const CANARY_DIFFERS: &str = "CanaryDiffers";

/// Which build of which plugin serves.
#[derive(Default)]
pub struct Registry {
    slots: RwLock<BTreeMap<String, Slot>>,
    /// Told when something may have to be loaded.
    changed: Notify,
}

#[derive(Default)]
struct Slot {
    serving: Option<Arc<Plugin>>,
    /// Digest of the newest file or spec, serving or not.
    seen: String,
    refusal: Option<Refusal>,
    swapped: Option<Duration>,
    served: u64,
    refused: u64,
    hooks: String,
    /// What to go back to.
    good: Option<Arc<Plugin>>,
    /// What was taken back: not tried again.
    bad: Option<Bad>,
    rolled_back: u64,
    canary: Option<Canary>,
    generation: i64,
}

struct Bad {
    plugin: Arc<Plugin>,
    why: String,
}

struct Canary {
    serving: Option<Arc<Plugin>>,
    seen: String,
    refusal: Option<Refusal>,
    bad: Option<Bad>,
    choice: Choice,
}

/// A build that began to serve.
pub struct Served {
    /// What serves now: not what was given where that was taken back before.
    pub now: Arc<Plugin>,
    /// What served until then.
    pub before: Option<Arc<Plugin>>,
}

/// A build that was taken back.
pub struct Back {
    /// What serves now.
    pub now: Arc<Plugin>,
    /// What was taken back.
    pub bad: Arc<Plugin>,
    /// Whether that was a canary.
    pub canary: bool,
    /// Why.
    pub why: String,
}

impl Slot {
    fn build(&self, like: &Plugin) -> Option<&Arc<Plugin>> {
        let canary = self.canary.as_ref().and_then(|c| c.serving.as_ref());
        let builds = [self.serving.as_ref(), canary];
        builds
            .into_iter()
            .flatten()
            .find(|b| Arc::ptr_eq(&b.record, &like.record))
    }

    /// A canary that differs in more than it may from what is beside it now ends. One that did so before is looked at
    /// anew; says whether there is one.
    fn compare(&mut self) -> bool {
        let (Some(stable), Some(canary)) = (&self.serving, &mut self.canary) else {
            return false;
        };
        let differs = |c: &Arc<Plugin>| stable.differs_for_objects(c);
        if let Some(difference) = canary.serving.as_ref().and_then(differs) {
            canary.serving = None;
            canary.refusal = Some(Refusal::new(CANARY_DIFFERS, difference));
        }
        let anew = canary
            .refusal
            .as_ref()
            .is_some_and(|r| r.reason == CANARY_DIFFERS);
        if anew {
            canary.seen.clear();
        }
        anew
    }

    /// Ends what the canary was for.
    fn alone(&mut self) {
        if let Some(serving) = &self.serving {
            serving.record.counts(false);
        }
    }
}

impl Registry {
    /// The plugin that reconciles a kind, in the build that serves now; beside a canary the other one.
    pub fn of_kind(&self, gvk: &Gvk) -> Option<Arc<Plugin>> {
        let slots = self.slots.read().expect("lock");
        let mut serving = slots.values().filter_map(|s| s.serving.as_ref());
        serving.find(|p| p.kind(gvk).is_some()).cloned()
    }

    /// The build that reconciles an object.
    pub fn of_object(&self, gvk: &Gvk, object: &Object) -> Option<Arc<Plugin>> {
        let slots = self.slots.read().expect("lock");
        let (slot, serving) = slots.values().find_map(|slot| {
            let serving = slot.serving.as_ref().filter(|p| p.kind(gvk).is_some())?;
            Some((slot, serving))
        })?;
        let canary = slot.canary.as_ref().filter(|c| c.serving.is_some());
        let taken = canary.filter(|c| c.choice.takes(object));
        Some(taken.and_then(|c| c.serving.as_ref()).unwrap_or(serving).clone())
    }

    /// The builds that serve now, without canaries.
    pub fn serving(&self) -> Vec<Arc<Plugin>> {
        let slots = self.slots.read().expect("lock");
        slots.values().filter_map(|s| s.serving.clone()).collect()
    }

    /// What serves in a slot.
    pub fn serves(&self, slot: &str) -> Option<Arc<Plugin>> {
        let slots = self.slots.read().expect("lock");
        slots.get(slot).and_then(|s| s.serving.clone())
    }

    /// A build with this digest that is compiled already.
    pub fn compiled(&self, digest: &str) -> Option<Arc<Plugin>> {
        let slots = self.slots.read().expect("lock");
        let builds = slots.values().flat_map(|slot| {
            let canary = slot.canary.as_ref();
            let bad = [slot.bad.as_ref(), canary.and_then(|c| c.bad.as_ref())];
            let builds = [
                slot.serving.as_ref(),
                slot.good.as_ref(),
                canary.and_then(|c| c.serving.as_ref()),
            ];
            builds
                .into_iter()
                .chain(bad.map(|b| b.map(|b| &b.plugin)))
                .flatten()
        });
        builds.into_iter().find(|b| b.digest == digest).cloned()
    }

    /// Whether this content of a slot has been dealt with.
    pub fn knows(&self, slot: &str, digest: &str) -> bool {
        let slots = self.slots.read().expect("lock");
        slots.get(slot).is_some_and(|s| s.seen == digest)
    }

    /// The same of its canary.
    pub fn knows_canary(&self, slot: &str, digest: &str) -> bool {
        let slots = self.slots.read().expect("lock");
        let canary = slots.get(slot).and_then(|s| s.canary.as_ref());
        canary.is_some_and(|c| c.seen == digest)
    }

    /// A `Plugin` object governs the plugin of its name, from when it is seen.
    pub fn govern(&self, plugin: &str) {
        self.slots
            .write()
            .expect("lock")
            .entry(of_object(plugin))
            .or_default();
    }

    /// Whether a `Plugin` object governs a plugin.
    pub fn governs(&self, plugin: &str) -> bool {
        self.slots.read().expect("lock").contains_key(&of_object(plugin))
    }

    /// A generation of a `Plugin` object has been dealt with.
    pub fn observed(&self, slot: &str, generation: i64) {
        if let Some(slot) = self.slots.write().expect("lock").get_mut(slot) {
            slot.generation = generation;
        }
    }

    /// Lets a build serve from now on. Calls in flight finish on the one before. The build of a `Plugin` object takes
    /// the place of one that a file has brought.
    pub fn serve(
        &self,
        id: &str,
        digest: &str,
        mut plugin: Plugin,
        took: Option<Duration>,
    ) -> Result<Served, Refusal> {
        let mut slots = self.slots.write().expect("lock");
        let object = of_object(plugin.name());
        let governed = id == object;
        if !governed && slots.contains_key(&object) {
            return Err(Refusal::new(
                "Governed",
                format!(
                    "the Plugin object {} governs the plugin of that name, and names another source",
                    plugin.name()
                ),
            ));
        }
        let mut replaced = None;
        for (other, slot) in slots.iter().filter(|(other, _)| *other != id) {
            let Some(theirs) = &slot.serving else { continue };
            if governed && theirs.name() == plugin.name() {
                replaced = Some(other.clone());
                continue;
            }
            if theirs.name() == plugin.name() {
                return Err(Refusal::new(
                    "NameTaken",
                    format!("the plugin name {} is taken by {other}", plugin.name()),
                ));
            }
            if let Some(kind) = plugin.kinds.iter().find(|k| theirs.kind(&k.gvk).is_some()) {
                return Err(Refusal::new(
                    "KindTaken",
                    format!(
                        "{} is reconciled by {} ({other}) already",
                        kind.gvk,
                        theirs.name()
                    ),
                ));
            }
        }
        let replaced = replaced.and_then(|file| slots.remove(&file));
        let slot = slots.entry(id.to_owned()).or_default();
        if let Some(replaced) = replaced {
            slot.serving = replaced.serving;
            (slot.served, slot.good, slot.bad) = (replaced.served, replaced.good, replaced.bad);
        }
        slot.seen = digest.into();
        slot.refusal = None;
        let before = slot.serving.take();
        if let Some(bad) = &slot.bad
            && bad.plugin.same_build(&plugin)
            && let Some(good) = &before
        {
            // Taken back before: what it went back to serves on, as it is agreed now.
            let now = Arc::new(good.under(&plugin));
            slot.serving = Some(now.clone());
            return Ok(Served { now, before });
        }
        match &before {
            Some(before) if before.same_build(&plugin) => plugin.record = before.record.clone(),
            Some(before) => {
                // One that is on trial and in doubt is nothing to go back to.
                if slot.good.is_none() || !before.record.doubtful() {
                    slot.good = Some(before.clone());
                }
                if let Some(good) = &slot.good {
                    plugin.record.follow(&good.record);
                }
                slot.bad = None;
                slot.served += 1;
                slot.swapped = took;
            }
            None => {
                slot.served += 1;
                slot.swapped = took;
            }
        }
        // Hooks are a component's: agreed otherwise, it has had them.
        if before.as_ref().is_none_or(|b| b.digest != plugin.digest) {
            slot.hooks = if plugin.lifecycle {
                "pending".into()
            } else {
                String::new()
            };
        }
        let now = Arc::new(plugin);
        slot.serving = Some(now.clone());
        if slot.compare() {
            self.look_again();
        }
        if before.as_ref().is_none_or(|b| !b.same_build(&now)) {
            let beside = slot.canary.as_ref().and_then(|c| c.serving.as_ref());
            now.record.counts(beside.is_some());
            if let Some(canary) = beside {
                canary.record.counts(true);
            }
        }
        if before.as_ref().is_some_and(|b| b.has_more_than(&now)) {
            self.freed(&mut slots);
        }
        Ok(Served { now, before })
    }

    /// What had to stand back is new again.
    fn freed(&self, slots: &mut BTreeMap<String, Slot>) {
        for slot in slots.values_mut() {
            let stood_back = |r: &Refusal| matches!(r.reason, "NameTaken" | "KindTaken" | "Governed");
            if slot.refusal.as_ref().is_some_and(stood_back) {
                slot.seen.clear();
                self.look_again();
            }
        }
    }

    /// Something may have to be loaded: a `Plugin` object has changed, or what stood in a build's way is gone.
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    /// Until something may have to be loaded.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What serves is bound by what is agreed now, whatever becomes of the newest build. Gives it, and how it was bound
    /// before, where that makes a difference.
    pub fn agree(
        &self,
        id: &str,
        grants: &Grants,
        limits: &Limits,
        suspended: bool,
    ) -> Option<(Arc<Plugin>, Arc<Plugin>)> {
        let mut slots = self.slots.write().expect("lock");
        // Until its own build serves, an object binds what a file has brought; and then no file does.
        let named = |s: &Slot| s.serving.as_ref().map(|p| of_object(p.name()));
        let own = slots.get(id).and_then(named);
        let slot = match own {
            Some(object) if object != id && slots.contains_key(&object) => return None,
            Some(_) => slots.get_mut(id)?,
            None => slots.values_mut().find(|s| named(s).is_some_and(|n| n == id))?,
        };
        if let Some(canary) = &mut slot.canary
            && let Some(serving) = &canary.serving
        {
            canary.serving = Some(Arc::new(serving.bound(grants, limits, suspended)));
        }
        let before = slot.serving.clone()?;
        let now = before.bound(grants, limits, suspended);
        if now.same(&before) {
            return None;
        }
        let now = Arc::new(now);
        slot.serving = Some(now.clone());
        Some((now, before))
    }

    /// Whether a build was taken back in this slot.
    pub fn taken_back(&self, id: &str, plugin: &Plugin) -> bool {
        let slots = self.slots.read().expect("lock");
        let slot = slots.get(id);
        let canary = slot.and_then(|s| s.canary.as_ref()).and_then(|c| c.bad.as_ref());
        let bad = [slot.and_then(|s| s.bad.as_ref()), canary];
        bad.into_iter().flatten().any(|b| b.plugin.same_build(plugin))
    }

    /// The newest content of a slot is bad: what served goes on serving.
    pub fn refuse(&self, id: &str, digest: &str, refusal: Refusal) {
        let mut slots = self.slots.write().expect("lock");
        let slot = slots.entry(id.into()).or_default();
        slot.refused += u64::from(slot.refusal.as_ref() != Some(&refusal) || slot.seen != digest);
        slot.seen = digest.into();
        slot.refusal = Some(refusal);
    }

    /// Lets a build reconcile a part of a plugin's objects. Gives what reconciles the others, or why it may not.
    pub fn serve_canary(
        &self,
        id: &str,
        digest: &str,
        plugin: Plugin,
        choice: Choice,
    ) -> Result<Arc<Plugin>, Refusal> {
        let mut slots = self.slots.write().expect("lock");
        let slot = slots.entry(id.to_owned()).or_default();
        let Some(stable) = &slot.serving else {
            return Err(Refusal::new(
                "NothingBeside",
                "there is no build beside it".into(),
            ));
        };
        if let Some(difference) = stable.differs_for_objects(&plugin) {
            return Err(Refusal::new(CANARY_DIFFERS, difference));
        }
        let before = slot.canary.take();
        let bad = before
            .and_then(|c| c.bad)
            .filter(|b| b.plugin.same_build(&plugin));
        let serving = bad.is_none().then(|| {
            plugin.record.counts(true);
            stable.record.counts(true);
            Arc::new(plugin)
        });
        let stable = stable.clone();
        slot.canary = Some(Canary {
            serving,
            seen: digest.into(),
            refusal: None,
            bad,
            choice,
        });
        Ok(stable)
    }

    /// A canary can't serve, or not yet (`refusal` is none).
    pub fn refuse_canary(&self, id: &str, digest: &str, choice: Choice, refusal: Option<Refusal>) {
        let mut slots = self.slots.write().expect("lock");
        let slot = slots.entry(id.to_owned()).or_default();
        let bad = slot.canary.take().and_then(|c| c.bad);
        slot.alone();
        slot.canary = Some(Canary {
            serving: None,
            seen: digest.into(),
            refusal,
            bad,
            choice,
        });
    }

    /// A canary reconciles other objects from now on. Gives whether these are others.
    pub fn choose(&self, id: &str, choice: &Choice) -> bool {
        let mut slots = self.slots.write().expect("lock");
        let Some(canary) = slots.get_mut(id).and_then(|s| s.canary.as_mut()) else {
            return false;
        };
        let other = canary.choice != *choice;
        canary.choice = choice.clone();
        other && canary.serving.is_some()
    }

    /// There is no canary any more. Gives whether one has served.
    pub fn drop_canary(&self, id: &str) -> bool {
        let mut slots = self.slots.write().expect("lock");
        let Some(slot) = slots.get_mut(id) else {
            return false;
        };
        let canary = slot.canary.take();
        slot.alone();
        canary.is_some_and(|c| c.serving.is_some())
    }

    /// A call about an object has ended. Takes the build back when that was too much; what is told besides is whether
    /// the plugin traps now and did not before, or the other way round.
    pub fn ended(
        &self,
        plugin: &Arc<Plugin>,
        uid: &str,
        ending: Ending,
        trap: &str,
        now: Instant,
    ) -> (Option<Back>, bool) {
        let noted = plugin.record.ended(uid, ending, trap, now);
        let back = noted.compared.then(|| self.judge(plugin, now)).flatten();
        (back, noted.news)
    }

    fn judge(&self, plugin: &Plugin, now: Instant) -> Option<Back> {
        let mut slots = self.slots.write().expect("lock");
        let id = slots.iter().find(|(_, slot)| slot.build(plugin).is_some());
        let id = id.map(|(id, _)| id.clone())?;
        // What another reconciles by now is not taken back from it.
        let good = slots[&id].good.clone();
        let taken = good.is_some_and(|good| {
            let others = slots.iter().filter(|(other, _)| **other != id);
            let mut others = others.filter_map(|(_, slot)| slot.serving.as_ref());
            others.any(|theirs| good.kinds.iter().any(|k| theirs.kind(&k.gvk).is_some()))
        });
        let slot = slots.get_mut(&id)?;
        if taken {
            slot.good = None;
        }
        let serving = slot.serving.clone()?;
        if let Some(canary) = &mut slot.canary
            && let Some(build) = &canary.serving
            && let Some(why) = build.record.worse_than(&serving.record)
        {
            let bad = build.clone();
            canary.serving = None;
            canary.bad = Some(Bad {
                plugin: bad.clone(),
                why: why.clone(),
            });
            slot.rolled_back += 1;
            slot.alone();
            return Some(Back {
                now: serving,
                bad,
                canary: true,
                why,
            });
        }
        match serving.record.verdict(now)? {
            Verdict::Open => None,
            Verdict::Passed => {
                slot.good = None;
                None
            }
            Verdict::Failed(why) => {
                let good = slot.good.take()?;
                let now = Arc::new(good.under(&serving));
                slot.serving = Some(now.clone());
                if slot.compare() {
                    self.look_again();
                }
                now.record
                    .counts(slot.canary.as_ref().is_some_and(|c| c.serving.is_some()));
                slot.bad = Some(Bad {
                    plugin: serving.clone(),
                    why: why.clone(),
                });
                slot.rolled_back += 1;
                if serving.has_more_than(&now) {
                    self.freed(&mut slots);
                }
                Some(Back {
                    now,
                    bad: serving,
                    canary: false,
                    why,
                })
            }
        }
    }

    /// How far the hooks of a plugin are.
    pub fn hooks(&self, plugin: &str, hooks: String) {
        let mut slots = self.slots.write().expect("lock");
        let of_plugin = |s: &&mut Slot| s.serving.as_ref().is_some_and(|p| **p.name() == *plugin);
        if let Some(slot) = slots.values_mut().find(of_plugin) {
            slot.hooks = hooks;
        }
    }

    /// The slot is gone; gives what served. What had to stand back for it is new again.
    pub fn remove(&self, id: &str) -> Option<Arc<Plugin>> {
        let mut slots = self.slots.write().expect("lock");
        let removed = slots.remove(id)?;
        // What the object agreed for a file's build holds no more.
        for slot in slots.values_mut() {
            if slot.serving.as_ref().is_some_and(|p| of_object(p.name()) == id) {
                slot.seen.clear();
                self.look_again();
            }
        }
        self.freed(&mut slots);
        removed.serving
    }

    /// The files and objects known.
    pub fn slots(&self) -> Vec<String> {
        self.slots.read().expect("lock").keys().cloned().collect()
    }

    /// What is known of a file or object.
    pub fn report(&self, id: &str) -> Option<Report> {
        let slots = self.slots.read().expect("lock");
        slots.get(id).map(|slot| slot.report(id))
    }

    /// All that is known, in order of the files.
    pub fn reports(&self) -> Vec<Report> {
        let slots = self.slots.read().expect("lock");
        slots.iter().map(|(id, slot)| slot.report(id)).collect()
    }
}

#[cfg(test)]
mod tests;
