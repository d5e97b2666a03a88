//! Who leads: an elector over a `coordination.k8s.io/v1` Lease, as client-go has it.
//!
//! Pure: time is a `Duration` on this process's monotonic clock and comes in with each call; requests go out
//! as values and their answers come back in. What other candidates' clocks say is never looked at:
//! a lease is expired when *its record has not changed* for its duration on the local clock. A leader counts
//! from *before* it sent the last renewal that succeeded, everybody else from after they have seen it, so
//! with `renew < lease` it has stopped before anybody else may begin.

use std::{sync::Arc, time::Duration};

/// The three durations of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Others take over when the lease hasn't been renewed for this long.
    pub lease: Duration,
    /// A leader that couldn't renew for this long stops.
    pub renew: Duration,
    /// Between attempts.
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
    /// Whether a leader stops before others begin, and can renew in between. The error is for people.
    pub fn check(&self) -> Result<(), String> {
        let Self { lease, renew, retry } = self;
        if retry.is_zero() || retry >= renew || renew >= lease {
            return Err(format!(
                "leader election needs retry period ({retry:?}) < renew deadline ({renew:?}) < lease duration ({lease:?})"
            ));
        }
        Ok(())
    }

    /// As the record has it: whole seconds, never less than meant.
    fn seconds(&self) -> u64 {
        self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0)
    }
}

/// What a Lease says. The times are for people only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Who holds it; empty when it was released.
    pub holder: Arc<str>,
    /// For how long after a renewal, in seconds.
    pub seconds: u64,
    /// Since when its holder has had it.
    pub acquired: Arc<str>,
    /// When it was renewed.
    pub renewed: Arc<str>,
    /// How often it changed hands.
    pub transitions: u64,
}

/// A Lease as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Its resourceVersion.
    pub version: Arc<str>,
    /// What it says.
    pub record: Record,
}

/// What to ask the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// The Lease as it is.
    Read,
    /// Make it.
    Create(Record),
    /// Change it, if it still has this version.
    Update(Lease),
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The Lease as read, or as written.
    Lease(Lease),
    /// There is none.
    Missing,
    /// Somebody else was faster.
    Conflict,
    /// No answer, or one that says nothing. A write may have been carried out, or may be later.
    Failed,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send this, and take no answer for [`Answer::Failed`] at that time.
    Send(Request, Duration),
    /// Nothing until then, or until the Lease changes.
    Wait(Duration),
    /// Resigned, and nothing is held.
    Done,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elector {
    me: Arc<str>,
    timing: Timing,
    /// The Lease as last seen.
    seen: Option<Seen>,
    /// What was seen need not be so any more: read before writing.
    stale: bool,
    /// May write before this time.
    until: Option<Duration>,
    /// How often it began to lead.
    term: u64,
    /// Nothing is done before.
    next: Duration,
    /// The request on its way: whether it writes, and when it was sent.
    sent: Option<(bool, Duration)>,
    resigned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seen {
    /// None when it is gone: who held it may not know that yet.
    version: Option<Arc<str>>,
    record: Record,
    /// When this record was first seen.
    at: Duration,
}

impl Seen {
    fn expires(&self) -> Duration {
        self.at + Duration::from_secs(self.record.seconds)
    }
}

impl Elector {
    /// A candidate of this identity, which no other may have.
    pub fn new(me: &str, timing: Timing) -> Self {
        Self {
            me: me.into(),
            timing,
            seen: None,
            stale: false,
            until: None,
            term: 0,
            next: Duration::ZERO,
            sent: None,
            resigned: false,
        }
    }

    /// While it leads: the term, and the time at which it stops unless it renews.
    pub fn leads(&self, now: Duration) -> Option<(u64, Duration)> {
        let until = self.until.filter(|until| now < *until)?;
        Some((self.term, until))
    }

    /// Who holds the lease, as far as is known.
    pub fn holder(&self) -> &str {
        self.seen.as_ref().map_or("", |seen| &seen.record.holder)
    }

    /// The version of the lease that was seen last.
    pub fn version(&self) -> Option<&str> {
        self.seen.as_ref()?.version.as_deref()
    }

    /// Leads no more, from now on, and lets the lease go.
    pub fn resign(&mut self) {
        self.until = None;
        self.resigned = true;
        self.next = Duration::ZERO;
    }

    /// The Lease changed: no need to wait.
    pub fn nudge(&mut self) {
        if self.until.is_none() {
            self.next = Duration::ZERO;
            self.stale = true;
        }
    }

    /// What to do now. `stamp` is the wall-clock time, for the record. After [`Step::Send`] comes
    /// [`Elector::answered`].
    pub fn step(&mut self, now: Duration, stamp: &str) -> Step {
        if self.leads(now).is_none() {
            self.until = None;
        }
        if now < self.next {
            return Step::Wait(self.next);
        }
        let request = match &self.seen {
            None => Request::Read,
            Some(_) if self.stale => Request::Read,
            Some(seen) if self.resigned => match &seen.version {
                Some(version) if seen.record.holder == self.me => Request::Update(Lease {
                    version: version.clone(),
                    record: Record {
                        holder: "".into(),
                        seconds: 1,
                        acquired: stamp.into(),
                        renewed: stamp.into(),
                        transitions: seen.record.transitions,
                    },
                }),
                _ => return Step::Done,
            },
            Some(seen) if !self.free(seen, now) => Request::Read,
            Some(seen) => {
                let record = self.record(seen, stamp);
                match &seen.version {
                    None => Request::Create(record),
                    Some(version) => Request::Update(Lease {
                        version: version.clone(),
                        record,
                    }),
                }
            }
        };
        self.sent = Some((request != Request::Read, now));
        let give_up = now + self.timing.renew / 2;
        Step::Send(request, self.until.map_or(give_up, |until| until.min(give_up)))
    }

    /// Takes in what came of the request.
    pub fn answered(&mut self, now: Duration, answer: Answer) {
        let Some((wrote, sent)) = self.sent.take() else {
            return;
        };
        self.stale = matches!(answer, Answer::Conflict | Answer::Failed);
        match answer {
            // Who holds it has little time to find out by whom it was changed; who lost a race has much.
            Answer::Conflict if self.until.is_some() || self.resigned => self.next = now,
            Answer::Conflict | Answer::Failed => self.next = now.max(sent + self.timing.retry),
            Answer::Missing => {
                match &mut self.seen {
                    Some(seen) => seen.version = None,
                    None => {
                        self.seen = Some(Seen {
                            version: None,
                            record: Record::default(),
                            at: now,
                        });
                    }
                }
                self.next = self.again(now);
            }
            Answer::Lease(lease) => {
                let mine = lease.record.holder == self.me;
                self.saw(lease, now);
                if !mine {
                    self.until = None;
                }
                self.next = self.again(now);
                let until = sent + self.timing.renew;
                if wrote && mine && !self.resigned && now < until {
                    self.term += u64::from(self.leads(now).is_none());
                    self.until = Some(until);
                    self.next = sent + self.timing.retry;
                }
            }
        }
    }

    fn saw(&mut self, lease: Lease, now: Duration) {
        let same = self.seen.as_ref().filter(|seen| seen.record == lease.record);
        self.seen = Some(Seen {
            at: same.map_or(now, |seen| seen.at),
            version: Some(lease.version),
            record: lease.record,
        });
    }

    /// Whether the lease may be taken, or is ours.
    fn free(&self, seen: &Seen, now: Duration) -> bool {
        seen.record.holder == self.me || seen.record.holder.is_empty() || now >= seen.expires()
    }

    /// When to go on after a look at the Lease.
    fn again(&self, now: Duration) -> Duration {
        match &self.seen {
            Some(seen) if !self.resigned && !self.free(seen, now) => {
                (now + self.timing.retry).min(seen.expires())
            }
            _ => now,
        }
    }

    fn record(&self, seen: &Seen, stamp: &str) -> Record {
        let mine = seen.record.holder == self.me;
        // Made for the first time it has not changed hands.
        let taken = seen.version.is_some() || seen.record.seconds > 0;
        Record {
            holder: self.me.clone(),
            seconds: self.timing.seconds(),
            acquired: if mine {
                seen.record.acquired.clone()
            } else {
                stamp.into()
            },
            renewed: stamp.into(),
            transitions: seen.record.transitions + u64::from(!mine && taken),
        }
    }
}

#[cfg(test)]
mod tests;
