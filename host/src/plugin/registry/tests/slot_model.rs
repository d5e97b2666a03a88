//! Random events of a slot, and the builds that must never serve whatever they are.

use proptest::prelude::*;

use super::*;

/// What may happen to a slot.
#[derive(Clone, Debug)]
enum SlotEvent {
    /// A build with this digit is loaded.
    Load(u8),
    Refuse,
    LoadCanary(u8),
    RemoveCanary,
    /// The host's policy revokes these digits.
    Revoke(Vec<u8>),
    /// The keys of now have not signed the builds of these sources.
    JudgeSignatures(Vec<u8>),
    Rebind {
        suspended: bool,
    },
    /// Enough objects trap with the build that has them.
    Trap,
    /// The status of the object records a rollback of the build with this digit, or none.
    Record(Option<u8>),
}

fn slot_event() -> impl Strategy<Value = SlotEvent> {
    let digit = || 1..4u8;
    let digits = || prop::collection::vec(1..4u8, 0..3);
    prop_oneof![
        4 => digit().prop_map(SlotEvent::Load),
        1 => Just(SlotEvent::Refuse),
        2 => digit().prop_map(SlotEvent::LoadCanary),
        1 => Just(SlotEvent::RemoveCanary),
        2 => digits().prop_map(SlotEvent::Revoke),
        2 => digits().prop_map(SlotEvent::JudgeSignatures),
        1 => any::<bool>().prop_map(|suspended| SlotEvent::Rebind { suspended }),
        3 => Just(SlotEvent::Trap),
        2 => prop::option::of(digit()).prop_map(SlotEvent::Record),
    ]
}

/// A slot with what is known of its builds from outside.
#[derive(Default)]
struct SlotModel {
    registry: PluginRegistry,
    revoked: Vec<u8>,
    unsigned: Vec<u8>,
    suspended: bool,
    record: Option<u8>,
    /// Digit of the build that was accepted last, and the digits that were rolled back since then.
    newest: Option<u8>,
    rolled_back: Vec<u8>,
}

impl SlotModel {
    fn build(&self, digit: u8) -> Plugin {
        Plugin {
            source: format!("registry.example.org/a@{digit}"),
            suspended: self.suspended,
            ..plugin("a", &digit.to_string(), "A")
        }
    }

    fn apply(&mut self, id: &SlotId, event: &SlotEvent) {
        let registry = &self.registry;
        match event {
            SlotEvent::Load(digit) => {
                let before = registry.serving_in(id);
                if registry.serve(id, "r", self.build(*digit), None).is_ok() {
                    // Another build ends the history of the ones before.
                    if self.newest != Some(*digit) {
                        self.rolled_back.clear();
                    }
                    self.newest = Some(*digit);
                    self.unsigned.retain(|other| other != digit);
                } else {
                    let now = registry.serving_in(id);
                    assert_eq!(now.map(|p| p.digest.clone()), before.map(|p| p.digest.clone()));
                }
            }
            SlotEvent::Refuse => {
                registry.record_refusal(id, "x", LoadError::new(plugin_reason::NOT_FOUND, "none".into()));
            }
            SlotEvent::LoadCanary(digit) => {
                let _ = registry.serve_canary(id, "c", self.build(*digit), weight(50));
                self.unsigned.retain(|other| other != digit);
            }
            SlotEvent::RemoveCanary => drop(registry.remove_canary(id)),
            SlotEvent::Revoke(digits) => {
                let digits: Vec<String> = digits.iter().map(u8::to_string).collect();
                registry.reserve_name("a");
                revoke(registry, id, &digits.iter().map(|d| &**d).collect::<Vec<_>>());
                self.revoked = digits.iter().map(|d| d.parse().expect("a digit")).collect();
            }
            SlotEvent::JudgeSignatures(digits) => {
                let violations = digits.iter().map(|digit| {
                    let error = LoadError::new(plugin_reason::INVALID_SIGNATURE, digit.to_string());
                    (self.build(*digit).source, error)
                });
                registry.judge_signatures(id, &violations.collect(), None);
                // Only of builds that the slot keeps.
                let kept = registry.kept_sources(id);
                let is_kept = |digit: &&u8| kept.contains(&self.build(**digit).source);
                self.unsigned = digits.iter().filter(is_kept).copied().collect();
            }
            SlotEvent::Rebind { suspended } => {
                if registry.serving_in(id).is_some() {
                    self.suspended = *suspended;
                }
                registry.rebind(id, &Grants::default(), &PluginLimits::default(), *suspended);
            }
            SlotEvent::Trap => {
                let now = Instant::now();
                for uid in 0..health::MIN_AFFECTED_OBJECTS {
                    let gvk = Gvk::new("g", "v1", "A");
                    let Some(build) = registry.find_for_object(&gvk, &object(uid)) else {
                        return;
                    };
                    let subject = uid.to_string();
                    let subject = CallSubject::Object(&Uid::from(&*subject));
                    let (back, _) = registry.record_call(&build, subject, CallResult::Trapped, "trap", now);
                    if let Some(back) = back.filter(|back| !back.canary) {
                        self.rolled_back
                            .push(back.bad.digest[..1].parse().expect("a digit"));
                    }
                }
            }
            SlotEvent::Record(digit) => {
                let record = digit.map(|digit| RolledBack::of_build(&self.build(digit), "elsewhere", None));
                if record.is_none()
                    && let Some(removed) = self.record
                {
                    self.rolled_back.retain(|rolled_back| *rolled_back != removed);
                    if self.newest == Some(removed) {
                        // It is loaded again by the next scan, and the previous build serves until then.
                        self.newest = None;
                    }
                }
                registry.update_rollback_record(id, record);
                self.record = *digit;
            }
        }
    }

    /// Checks the builds that serve unsuspended.
    fn check(&self, id: &SlotId) -> Result<(), TestCaseError> {
        let Some(stable) = self.registry.serving_in(id) else {
            return Ok(());
        };
        let digit = |plugin: &Plugin| plugin.digest[..1].parse::<u8>().expect("a digit");
        let objects = (0..20).filter_map(|uid| {
            let gvk = Gvk::new("g", "v1", "A");
            self.registry.find_for_object(&gvk, &object(uid))
        });
        for build in objects.chain([stable.clone()]).filter(|build| !build.suspended) {
            let digit = digit(&build);
            prop_assert!(!self.revoked.contains(&digit), "{digit} is revoked and serves");
            prop_assert!(!self.unsigned.contains(&digit), "{digit} is unsigned and serves");
            prop_assert!(!self.suspended, "{digit} serves although the plugin is suspended");
        }
        let report = self.registry.report(id).expect("a slot");
        if !stable.suspended {
            let digit = digit(&stable);
            prop_assert!(
                self.record != Some(digit),
                "{digit} is recorded as rolled back and serves"
            );
            prop_assert!(
                !self.rolled_back.contains(&digit),
                "{digit} was rolled back and serves"
            );
            prop_assert!(!report.stopped);
        }
        // A policy stops builds, and never lets an older one serve.
        if self.rolled_back.is_empty() && self.record.is_none() {
            prop_assert!(self.newest.is_none_or(|newest| newest == digit(&stable)));
        }
        Ok(())
    }
}

proptest! {
    /// Whatever happens in whatever order, no build serves that was revoked, is not signed, was rolled back or is suspended.
    #[test]
    fn slot_never_serves_what_must_not_run(events in prop::collection::vec(slot_event(), 1..40)) {
        let (mut model, id) = (SlotModel::default(), SlotId::object("a"));
        for event in &events {
            model.apply(&id, event);
            model.check(&id)?;
        }
    }
}
