//! The reconcile of a record set, which is the same for all classes. A [`Driver`] translates it to a provider's API.
//!
//! Stages: dereference the provider, validate, observe, judge the ownership, write the differences.

use std::{collections::BTreeSet, ops::Deref};

use ostler_sdk::{
    Condition, Context, Failure, KindSpec, Object, ObjectRef, Outcome, Upstream, duration, from_rfc3339, gvk,
    rfc3339,
};

use crate::{
    DnsProvider, DnsProviderSpec, Mark, RecordReclaimPolicy, RecordSetSpec, RecordSetStatus, RecordType,
    canonical_values,
    response::{REFUSED, ZONE_NOT_FOUND},
    suspended_outcome,
};

/// Finalizer of record sets.
pub const FINALIZER: &str = "dns.ostler.dev/record-set";

/// Age of a listing of a zone that record sets share, in seconds.
pub const SHARED_LISTING_SECONDS: u64 = 60;
/// The same as `Cache-Control` of the request.
pub const SHARED_LISTING: &str = "max-age=60";

const DEFAULT_POLL_MS: u64 = 300_000;
const MIN_POLL_MS: u64 = 30_000;
const MAX_POLL_MS: u64 = 3_600_000;

/// What a provider allows for the time to live, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct TtlRules {
    /// Used if the record sets none.
    pub default: u32,
    /// Minimum.
    pub min: u32,
    /// Maximum.
    pub max: u32,
    /// A value below the minimum that has a meaning of its own.
    pub automatic: Option<u32>,
}

/// The records that a record set wants.
#[derive(Clone, Debug)]
pub struct DesiredRecords {
    /// Zone of the name.
    pub zone: String,
    /// The name in full.
    pub fqdn: String,
    /// Type of the records.
    pub kind: RecordType,
    /// Time to live in seconds.
    pub ttl: u32,
    /// Values in canonical form.
    pub values: BTreeSet<String>,
    /// Serves the name through the provider's proxy.
    pub proxied: bool,
    /// The mark.
    pub mark: Mark,
}

/// Records of one name and type at the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Time to live in seconds.
    pub ttl: u32,
    /// Values in canonical form; one that has none is as the provider shows it.
    pub values: BTreeSet<String>,
    /// The name is served through the provider's proxy.
    pub proxied: bool,
    /// The records differ in a way that only a write mends, for example because one is disabled.
    pub is_irregular: bool,
    /// Identifiers of the records, by value, at a provider without record sets.
    pub ids: Vec<(String, String)>,
}

/// The state at the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The records; none if there are none.
    pub records: Option<Found>,
    /// The TXT records at the name of the mark.
    pub mark: Option<Found>,
}

/// What a write has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The mark is missing.
    pub mark: bool,
    /// The records differ.
    pub records: bool,
}

/// The API of a provider.
pub trait Driver {
    /// The kind of its record sets.
    type Spec: KindSpec<Status = RecordSetStatus> + Deref<Target = RecordSetSpec>;
    /// What it allows for the time to live.
    const TTL: TtlRules;
    /// The API has a listing of a zone that record sets share.
    const HAS_LISTING: bool;

    /// Checks what this provider does not offer.
    ///
    /// # Errors
    /// The text of the problem, with the remedy.
    fn check(&self, _desired: &DesiredRecords) -> Result<(), String> {
        Ok(())
    }

    /// Reads the records and the mark; from a listing not older than [`SHARED_LISTING_SECONDS`] if `may_share`.
    ///
    /// # Errors
    /// The failure of the request.
    fn observe(&self, api: &Upstream, desired: &DesiredRecords, may_share: bool)
    -> Result<Observed, Failure>;

    /// Writes the mark and the records, in this order.
    ///
    /// # Errors
    /// The failure of the request.
    fn write(
        &self,
        api: &Upstream,
        desired: &DesiredRecords,
        observed: &Observed,
        changes: Changes,
    ) -> Result<(), Failure>;

    /// Deletes the records and the mark, in this order. What is absent counts as deleted.
    ///
    /// # Errors
    /// The failure of the request.
    fn delete(&self, api: &Upstream, desired: &DesiredRecords, observed: &Observed) -> Result<(), Failure>;
}

/// Whether the records at the provider may be written.
#[derive(Debug, PartialEq, Eq)]
enum Ownership {
    /// There is nothing at the name.
    Free,
    /// The mark is that of this object.
    Ours,
    /// Somebody else made them.
    Foreign { reason: &'static str, message: String },
}

/// Reconciles a record set.
///
/// # Errors
/// The failure of a stage.
pub fn reconcile<D: Driver>(driver: &D, ctx: &Context, set: &Object<D::Spec>) -> Result<Outcome, Failure> {
    if set.spec.suspend {
        return Ok(suspended_outcome());
    }
    let provider = dereference(ctx, set)?;
    let desired = validate(driver, set, &provider)?;
    let api = ctx.upstream_in(provider.namespace(), provider.name());
    let observed = observe(driver, ctx, &api, set, &desired)?;
    if let Ownership::Foreign { reason, message } = judge(&observed, &desired.mark, &desired) {
        return Ok(report_conflict(ctx, set, &provider, reason, &message));
    }
    let changes = compare(&observed, &desired);
    let mut status = RecordSetStatus {
        mark: Some(desired.mark.clone()),
        ttl: Some(desired.ttl),
        last_applied: set.status.last_applied.clone(),
        conflict: None,
    };
    if changes.mark || changes.records {
        claim(ctx, set, &status)?;
        driver
            .write(&api, &desired, &observed, changes)
            .map_err(|failure| failure.status(&with_claim(set, &desired.mark)))?;
        status.last_applied = Some(rfc3339(ctx.now() / 1000));
    }
    let ready = Condition::new_true("Ready", "Ready", "The provider has the records.");
    Ok(Outcome::poll(poll_interval(&provider.spec))
        .with(ready)
        .status(&status))
}

/// Deletes the records, if this object has claimed them and its mark is still there.
///
/// # Errors
/// A fault that may pass, so that no deletion is lost.
pub fn cleanup<D: Driver>(driver: &D, ctx: &Context, set: &Object<D::Spec>) -> Result<Outcome, Failure> {
    let Some(mark) = &set.status.mark else {
        return Ok(Outcome::await_change());
    };
    let what = format!("{} {}", set.spec.fqdn, set.spec.r#type.as_str());
    if set.spec.reclaim_policy == RecordReclaimPolicy::Orphan {
        let note = format!("{what} stays at the provider: reclaimPolicy is Orphan.");
        ctx.event("Orphaned", &note);
        return Ok(Outcome::await_change());
    }
    let (namespace, name) = provider_of(set);
    // The Upstream goes with its provider, but not before the last cleanup that needs it.
    if ctx.get_metadata(&upstream_ref(namespace, name))?.is_none() {
        let note = format!("{what} stays at the provider: DnsProvider {namespace}/{name} is gone.");
        ctx.warn("Orphaned", &note);
        return Ok(Outcome::await_change());
    }
    let api = ctx.upstream_in(namespace, name);
    let desired = DesiredRecords {
        zone: set.spec.zone.clone(),
        fqdn: set.spec.fqdn.clone(),
        kind: set.spec.r#type,
        ttl: D::TTL.default,
        values: BTreeSet::new(),
        proxied: false,
        mark: mark.clone(),
    };
    let observed = match driver.observe(&api, &desired, false) {
        // The records have gone with their zone.
        Err(failure) if failure.reason == ZONE_NOT_FOUND => return Ok(Outcome::await_change()),
        observed => observed?,
    };
    match judge(&observed, mark, &desired) {
        Ownership::Ours => driver.delete(&api, &desired, &observed).map_err(retry_refused)?,
        Ownership::Free => {}
        Ownership::Foreign { .. } => {
            let note = format!("{what} stays at the provider: it no longer has the mark of this object.");
            ctx.warn("Orphaned", &note);
        }
    }
    Ok(Outcome::await_change())
}

/// A refused deletion is repeated with backoff, so that the object does not stay longer than it has to.
fn retry_refused(failure: Failure) -> Failure {
    if failure.reason == REFUSED {
        return Failure::retry(REFUSED, failure.message);
    }
    failure
}

fn provider_of<S>(set: &Object<S>) -> (&str, &str)
where
    S: KindSpec + Deref<Target = RecordSetSpec>,
{
    let reference = &set.spec.provider_ref;
    (reference.namespace_or(set.namespace()), &reference.name)
}

/// The Upstream of a provider, which has the same namespace and name.
#[must_use]
pub fn upstream_ref(namespace: &str, name: &str) -> ObjectRef {
    gvk("ostler.dev", "v1alpha1", "Upstream").named(namespace, name)
}

/// Dereferences the DnsProvider, which has to be Ready.
fn dereference<S>(ctx: &Context, set: &Object<S>) -> Result<DnsProvider, Failure>
where
    S: KindSpec + Deref<Target = RecordSetSpec>,
{
    let (namespace, name) = provider_of(set);
    let provider = ctx.require_ready::<DnsProviderSpec>(namespace, name);
    let provider = provider.map_err(|error| Failure::from(error).reason("ProviderNotReady"))?;
    // Also here, since record sets can be written by others than the reconciler of DnsRecords.
    provider
        .spec
        .admit((namespace, name), set.namespace(), &set.spec.zone)?;
    Ok(provider)
}

fn validate<D: Driver>(
    driver: &D,
    set: &Object<D::Spec>,
    provider: &DnsProvider,
) -> Result<DesiredRecords, Failure> {
    let invalid = |problem: String| Failure::terminal("InvalidSpec", problem);
    let spec = &*set.spec;
    let ttl = choose_ttl(D::TTL, spec.ttl).map_err(invalid)?;
    let owner = &provider.spec.owner_id;
    let object = (set.namespace(), set.name());
    let desired = DesiredRecords {
        zone: spec.zone.clone(),
        fqdn: spec.fqdn.clone(),
        kind: spec.r#type,
        ttl,
        values: canonical_values(spec.r#type, &spec.values).map_err(invalid)?,
        proxied: spec.proxied == Some(true),
        mark: Mark::new(&spec.fqdn, spec.r#type, owner, object).map_err(invalid)?,
    };
    driver.check(&desired).map_err(invalid)?;
    Ok(desired)
}

fn choose_ttl(rules: TtlRules, wanted: Option<u32>) -> Result<u32, String> {
    let Some(ttl) = wanted else {
        return Ok(rules.default);
    };
    if (rules.min..=rules.max).contains(&ttl) || rules.automatic == Some(ttl) {
        return Ok(ttl);
    }
    let TtlRules { min, max, .. } = rules;
    Err(format!(
        "spec.ttl is {ttl}, but the provider allows {min} to {max}: set such a value, or none for {}",
        rules.default
    ))
}

/// Reads the records. A listing serves as long as it shows no difference, and is younger than the last write.
fn observe<D: Driver>(
    driver: &D,
    ctx: &Context,
    api: &Upstream,
    set: &Object<D::Spec>,
    desired: &DesiredRecords,
) -> Result<Observed, Failure> {
    let written = set.status.last_applied.as_deref().and_then(from_rfc3339);
    let is_settled = written.is_some_and(|at| ctx.now() / 1000 > at + SHARED_LISTING_SECONDS);
    if D::HAS_LISTING && is_settled && set.status.mark.is_some() {
        let observed = driver.observe(api, desired, true)?;
        let changes = compare(&observed, desired);
        if !changes.mark && !changes.records {
            return Ok(observed);
        }
    }
    driver.observe(api, desired, false)
}

fn judge(observed: &Observed, mark: &Mark, desired: &DesiredRecords) -> Ownership {
    let name = format!("{} {}", desired.fqdn, desired.kind.as_str());
    match observed {
        Observed {
            mark: Some(found), ..
        } if is_our_mark(found, mark) => Ownership::Ours,
        Observed {
            mark: Some(found), ..
        } => {
            let texts: Vec<&str> = found.values.iter().map(String::as_str).collect();
            let texts: String = texts.join("; ").chars().take(300).collect();
            Ownership::Foreign {
                reason: "OwnedByAnother",
                message: format!(
                    "{name} is left alone: its mark, TXT {}, names another owner ({texts}). Delete the other object, or \
                     the TXT record if that owner is gone.",
                    mark.fqdn
                ),
            }
        }
        Observed { records: Some(_), .. } => Ownership::Foreign {
            reason: "ForeignRecord",
            message: format!(
                "{name} is left alone: it exists and has no mark. Delete it at the provider, or hand it over by creating \
                 TXT {} with the value \"{}\".",
                mark.fqdn, mark.text
            ),
        },
        _ => Ownership::Free,
    }
}

fn is_our_mark(found: &Found, mark: &Mark) -> bool {
    found.values.len() == 1 && found.values.contains(&mark.text)
}

fn compare(observed: &Observed, desired: &DesiredRecords) -> Changes {
    let has_mark = observed
        .mark
        .as_ref()
        .is_some_and(|mark| is_our_mark(mark, &desired.mark));
    let is_same = |found: &Found| {
        found.values == desired.values
            && found.ttl == desired.ttl
            && found.proxied == desired.proxied
            && !found.is_irregular
    };
    Changes {
        mark: !has_mark,
        records: !observed.records.as_ref().is_some_and(is_same),
    }
}

/// The last status, with the claim.
fn with_claim<S>(set: &Object<S>, mark: &Mark) -> RecordSetStatus
where
    S: KindSpec<Status = RecordSetStatus>,
{
    RecordSetStatus {
        mark: Some(mark.clone()),
        ..set.status.clone()
    }
}

/// Records the claim before the first write, so that a deletion undoes it even if this call ends during the write.
fn claim<S>(ctx: &Context, set: &Object<S>, status: &RecordSetStatus) -> Result<(), Failure>
where
    S: KindSpec<Status = RecordSetStatus>,
{
    if set.status.mark != status.mark
        && let Some(mark) = &status.mark
    {
        ctx.checkpoint(&with_claim(set, mark))?;
    }
    Ok(())
}

/// The outcome for records of somebody else: they are looked at again at the interval, since no change in the cluster
/// tells of theirs.
fn report_conflict<S>(
    ctx: &Context,
    set: &Object<S>,
    provider: &DnsProvider,
    reason: &str,
    message: &str,
) -> Outcome
where
    S: KindSpec<Status = RecordSetStatus>,
{
    if set.status.conflict.as_deref() != Some(message) {
        ctx.warn(reason, message);
    }
    let status = RecordSetStatus {
        conflict: Some(message.to_owned()),
        ..set.status.clone()
    };
    Outcome::poll(poll_interval(&provider.spec))
        .with(Condition::new_false("Ready", reason, message))
        .status(&status)
}

/// The interval at which records are compared with the provider, in milliseconds.
#[must_use]
pub fn poll_interval(provider: &DnsProviderSpec) -> u64 {
    duration(&provider.poll_interval)
        .unwrap_or(DEFAULT_POLL_MS)
        .clamp(MIN_POLL_MS, MAX_POLL_MS)
}

/// Adds a value to the records of a name and type. A value without a canonical form is kept as it is, and differs from
/// every desired one.
pub fn add_value(found: &mut Option<Found>, kind: RecordType, value: &str, ttl: u32) {
    let canonical = crate::canonical_value(kind, value).unwrap_or_else(|_| value.to_owned());
    let found = found.get_or_insert_with(|| Found {
        ttl,
        ..Found::default()
    });
    found.is_irregular |= found.ttl != ttl;
    found.values.insert(canonical);
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: TtlRules = TtlRules {
        default: 3600,
        min: 600,
        max: 86_400,
        automatic: Some(1),
    };

    fn desired() -> DesiredRecords {
        DesiredRecords {
            zone: "example.com".into(),
            fqdn: "app.example.com".into(),
            kind: RecordType::A,
            ttl: 60,
            values: BTreeSet::from(["192.0.2.1".to_owned()]),
            proxied: false,
            mark: Mark::new("app.example.com", RecordType::A, "o", ("n", "r")).expect("a mark"),
        }
    }

    fn found(kind: RecordType, value: &str) -> Option<Found> {
        let mut found = None;
        add_value(&mut found, kind, value, 60);
        found
    }

    #[test]
    fn ttl_outside_of_the_rules_is_refused_with_the_remedy() {
        assert_eq!(choose_ttl(RULES, None), Ok(3600));
        for ttl in [1, 600, 86_400] {
            assert_eq!(choose_ttl(RULES, Some(ttl)), Ok(ttl));
        }
        for ttl in [2, 599, 86_401] {
            let problem = choose_ttl(RULES, Some(ttl)).expect_err("refused");
            assert!(problem.contains("600 to 86400"), "{problem}");
        }
    }

    #[test]
    fn records_are_ours_only_with_exactly_our_mark() {
        let desired = desired();
        let judge = |records: Option<Found>, mark: Option<Found>| match judge(
            &Observed { records, mark },
            &desired.mark,
            &desired,
        ) {
            Ownership::Free => "Free",
            Ownership::Ours => "Ours",
            Ownership::Foreign { reason, .. } => reason,
        };
        let ours = || found(RecordType::TXT, &desired.mark.text);
        let records = || found(RecordType::A, "192.0.2.9");
        assert_eq!(judge(None, None), "Free");
        assert_eq!(judge(records(), None), "ForeignRecord");
        assert_eq!(judge(records(), ours()), "Ours");
        assert_eq!(
            judge(None, ours()),
            "Ours",
            "the host was killed between the writes"
        );
        let other = found(RecordType::TXT, "heritage=ostler,ostler/owner=p");
        assert_eq!(judge(None, other.clone()), "OwnedByAnother");
        let mut both = ours();
        add_value(&mut both, RecordType::TXT, "heritage=ostler,ostler/owner=p", 60);
        assert_eq!(judge(records(), both), "OwnedByAnother");
    }

    #[test]
    fn differences_are_found_by_field() {
        let desired = desired();
        let ours = found(RecordType::TXT, &desired.mark.text);
        let changes = |records: Option<Found>| {
            let observed = Observed {
                records,
                mark: ours.clone(),
            };
            compare(&observed, &desired)
        };
        let same = found(RecordType::A, "192.0.2.1");
        assert_eq!(
            changes(same.clone()),
            Changes {
                mark: false,
                records: false
            }
        );
        let with = |change: fn(&mut Found)| {
            let mut found = same.clone().expect("records");
            change(&mut found);
            Some(found)
        };
        for different in [
            None,
            with(|found| found.ttl = 61),
            with(|found| found.proxied = true),
            with(|found| found.is_irregular = true),
            with(|found| {
                found.values.insert("192.0.2.2".into());
            }),
        ] {
            assert!(changes(different.clone()).records, "{different:?}");
        }
        let unmarked = compare(&Observed::default(), &desired);
        assert_eq!(
            unmarked,
            Changes {
                mark: true,
                records: true
            }
        );
    }
}
