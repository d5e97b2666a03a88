//! Leader election over a `coordination.k8s.io/v1` Lease, as client-go does it, as a pure state machine.
//!
//! Time is a `Duration` on this process's monotonic clock and comes in with each call; requests go out as values and
//! responses come back in. The clocks of other candidates do not matter: a lease has expired when *its record has not
//! changed* for its duration on the local clock. A leader counts from *before* it sent the last renewal that
//! succeeded, all others from after they saw it. So with `renew < lease` the leader has stopped before another
//! candidate may begin.

use std::{sync::Arc, time::Duration};

/// The three durations of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Lease duration: other candidates take over when the lease was not renewed for this long.
    pub lease: Duration,
    /// Renew deadline: a leader that could not renew for this long stops.
    pub renew: Duration,
    /// Retry period between attempts.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

impl Timing {
    /// Checks that a leader stops before others begin, and can renew in between.
    pub fn validate(&self) -> Result<(), String> {
        let Self { lease, renew, retry } = self;
        if retry.is_zero() || retry >= renew || renew >= lease {
            return Err(format!(
                "leader election needs retry period ({retry:?}) < renew deadline ({renew:?}) < lease duration ({lease:?})"
            ));
        }
        Ok(())
    }

    /// The lease duration in whole seconds, rounded up, as the record holds it.
    fn lease_seconds(&self) -> u64 {
        self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0)
    }
}

/// The record in a Lease. Its times are informational; the election does not use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseRecord {
    /// Identity of the holder; empty after a release.
    pub holder: Arc<str>,
    /// Lease duration in seconds.
    pub seconds: u64,
    /// Time at which the holder acquired it.
    pub acquired: Arc<str>,
    /// Time of the last renewal.
    pub renewed: Arc<str>,
    /// Number of changes of the holder.
    pub transitions: u64,
}

/// A Lease at the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Its resourceVersion.
    pub version: Arc<str>,
    /// The record.
    pub record: LeaseRecord,
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseRequest {
    /// Read the Lease.
    Read,
    /// Create the Lease.
    Create(LeaseRecord),
    /// Update the Lease if it still has this version.
    Update(Lease),
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseResponse {
    /// The Lease as read, or as written.
    Lease(Lease),
    /// The Lease does not exist.
    Missing,
    /// The Lease has another version (`409 Conflict`).
    Conflict,
    /// No response, or an uninformative one. A write may have been executed, or may still be.
    Failed,
}

/// The next step of a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ElectionStep {
    /// Send the request; without a response until this time, report [`LeaseResponse::Failed`].
    Send(LeaseRequest, Duration),
    /// Wait until this time, or until the Lease changes.
    Wait(Duration),
    /// The lease is released; nothing is left to do.
    Done,
}

/// The leadership of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Number of the term.
    pub term: u64,
    /// Time at which it ends unless the lease is renewed.
    pub until: Duration,
}

/// One candidate of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElectionMachine {
    identity: Arc<str>,
    timing: Timing,
    /// The Lease as last observed.
    observed: Option<Observed>,
    /// True if the Lease may have changed since: read it before writing.
    stale: bool,
    /// Deadline before which this candidate may write.
    leads_until: Option<Duration>,
    /// Number of times it began to lead.
    term: u64,
    /// Time before which nothing is sent.
    next_attempt: Duration,
    in_flight: Option<InFlight>,
    released: bool,
}

/// A request without a response yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct InFlight {
    writes: bool,
    sent_at: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Observed {
    /// None if the Lease was deleted. Its holder may not know that yet, so the record still counts.
    version: Option<Arc<str>>,
    record: LeaseRecord,
    /// Time at which this record was first observed.
    at: Duration,
}

impl Observed {
    fn expires_at(&self) -> Duration {
        self.at + Duration::from_secs(self.record.seconds)
    }
}

impl ElectionMachine {
    /// Creates a candidate with this identity, which no other may have.
    pub fn new(identity: &str, timing: Timing) -> Self {
        Self {
            identity: identity.into(),
            timing,
            observed: None,
            stale: false,
            leads_until: None,
            term: 0,
            next_attempt: Duration::ZERO,
            in_flight: None,
            released: false,
        }
    }

    /// The leadership, while this candidate leads.
    pub fn leadership(&self, now: Duration) -> Option<Leadership> {
        let until = self.leads_until.filter(|until| now < *until)?;
        let term = self.term;
        Some(Leadership { term, until })
    }

    /// The last known holder of the lease.
    pub fn holder(&self) -> &str {
        self.observed.as_ref().map_or("", |seen| &seen.record.holder)
    }

    /// The last observed version of the lease.
    pub fn version(&self) -> Option<&str> {
        self.observed.as_ref()?.version.as_deref()
    }

    /// Stops leading at once and releases the lease with the next step.
    pub fn release(&mut self) {
        self.leads_until = None;
        self.released = true;
        self.next_attempt = Duration::ZERO;
    }

    /// Ends the waiting of a candidate that does not lead, because the Lease changed.
    pub fn on_lease_change(&mut self) {
        if self.leads_until.is_none() {
            self.next_attempt = Duration::ZERO;
            self.stale = true;
        }
    }

    /// Decides on the next step. `stamp` is the wall-clock time, for the record. After [`ElectionStep::Send`] the caller
    /// reports the response by [`ElectionMachine::on_response`].
    pub fn next_step(&mut self, now: Duration, stamp: &str) -> ElectionStep {
        if self.leadership(now).is_none() {
            self.leads_until = None;
        }
        if now < self.next_attempt {
            return ElectionStep::Wait(self.next_attempt);
        }
        let request = match &self.observed {
            None => LeaseRequest::Read,
            Some(_) if self.stale => LeaseRequest::Read,
            Some(seen) if self.released => match &seen.version {
                Some(version) if seen.record.holder == self.identity => LeaseRequest::Update(Lease {
                    version: version.clone(),
                    record: LeaseRecord {
                        holder: "".into(),
                        seconds: 1,
                        acquired: stamp.into(),
                        renewed: stamp.into(),
                        transitions: seen.record.transitions,
                    },
                }),
                _ => return ElectionStep::Done,
            },
            Some(seen) if !self.is_available(seen, now) => LeaseRequest::Read,
            Some(seen) => {
                let record = self.own_record(seen, stamp);
                match &seen.version {
                    None => LeaseRequest::Create(record),
                    Some(version) => LeaseRequest::Update(Lease {
                        version: version.clone(),
                        record,
                    }),
                }
            }
        };
        self.in_flight = Some(InFlight {
            writes: request != LeaseRequest::Read,
            sent_at: now,
        });
        let give_up = now + self.timing.renew / 2;
        let give_up = self.leads_until.map_or(give_up, |until| until.min(give_up));
        ElectionStep::Send(request, give_up)
    }

    /// Applies the response to the last request.
    pub fn on_response(&mut self, now: Duration, response: LeaseResponse) {
        let Some(InFlight { writes, sent_at }) = self.in_flight.take() else {
            return;
        };
        self.stale = matches!(response, LeaseResponse::Conflict | LeaseResponse::Failed);
        match response {
            // A holder has little time to find out who changed the lease; a candidate that lost a race has enough.
            LeaseResponse::Conflict if self.leads_until.is_some() || self.released => self.next_attempt = now,
            LeaseResponse::Conflict | LeaseResponse::Failed => {
                self.next_attempt = now.max(sent_at + self.timing.retry);
            }
            LeaseResponse::Missing => {
                match &mut self.observed {
                    Some(seen) => seen.version = None,
                    None => {
                        self.observed = Some(Observed {
                            version: None,
                            record: LeaseRecord::default(),
                            at: now,
                        });
                    }
                }
                self.next_attempt = self.next_attempt_after(now);
            }
            LeaseResponse::Lease(lease) => {
                let is_mine = lease.record.holder == self.identity;
                self.observe_lease(lease, now);
                if !is_mine {
                    self.leads_until = None;
                }
                self.next_attempt = self.next_attempt_after(now);
                let until = sent_at + self.timing.renew;
                if writes && is_mine && !self.released && now < until {
                    self.term += u64::from(self.leadership(now).is_none());
                    self.leads_until = Some(until);
                    self.next_attempt = sent_at + self.timing.retry;
                }
            }
        }
    }

    fn observe_lease(&mut self, lease: Lease, now: Duration) {
        let same = self.observed.as_ref().filter(|seen| seen.record == lease.record);
        self.observed = Some(Observed {
            at: same.map_or(now, |seen| seen.at),
            version: Some(lease.version),
            record: lease.record,
        });
    }

    /// Returns true if the lease is ours or may be taken.
    fn is_available(&self, seen: &Observed, now: Duration) -> bool {
        seen.record.holder == self.identity || seen.record.holder.is_empty() || now >= seen.expires_at()
    }

    /// The time of the next request after the Lease was read.
    fn next_attempt_after(&self, now: Duration) -> Duration {
        match &self.observed {
            Some(seen) if !self.released && !self.is_available(seen, now) => {
                (now + self.timing.retry).min(seen.expires_at())
            }
            _ => now,
        }
    }

    fn own_record(&self, seen: &Observed, stamp: &str) -> LeaseRecord {
        let is_mine = seen.record.holder == self.identity;
        // The creation of a Lease that never existed is not a transition.
        let existed = seen.version.is_some() || seen.record.seconds > 0;
        LeaseRecord {
            holder: self.identity.clone(),
            seconds: self.timing.lease_seconds(),
            acquired: if is_mine {
                seen.record.acquired.clone()
            } else {
                stamp.into()
            },
            renewed: stamp.into(),
            transitions: seen.record.transitions + u64::from(!is_mine && existed),
        }
    }
}

#[cfg(test)]
mod tests;
