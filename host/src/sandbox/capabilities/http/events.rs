//! Event streams: followed on behalf of the object, or read to their end.

use std::time::{Duration, Instant};

use super::Secrets;
use crate::{
    contract::{
        bindings::{
            http::{Event, EventQuery, EventTail, Subscription},
            types::Error,
        },
        limits::Limit,
    },
    observe::metrics::HostCall,
    sandbox::capabilities::Call,
    upstream::{EventPattern, StreamKey, StreamSubscription, TailQuery},
};

/// Events given at most, their bytes, and how long reading may take.
const EVENTS: usize = 1000;
const BYTES: usize = 256 << 10;
const READING: Duration = Duration::from_secs(30);

impl Call {
    /// Follows a stream for as long as the object's reconciles ask for it.
    pub(super) async fn follow(&mut self, subscription: Subscription) -> Result<(), Error> {
        self.reconciling("http.subscribe")?;
        let path = &subscription.path_and_query;
        let call = HostCall::HttpSubscribe;
        let (services, key, upstream) = self.upstream(call, &subscription.upstream, "GET", path).await?;
        let Some(object) = self.subject().cloned() else {
            return Ok(());
        };
        let key = StreamKey {
            upstream: key,
            path: path.as_str().into(),
        };
        let most = self.terms.limits.subscriptions as usize;
        if !self.follows.contains(&key) && self.follows.len() >= most {
            return Err(self.exceeded(Limit::Subscriptions, "event streams of one object"));
        }
        // Before it is open: what comes at once must not be lost to the end of this reconcile.
        self.follows.insert(key.clone());
        let source = services.upstreams.stream_source(&upstream, &Secrets(&services))?;
        let interest = StreamSubscription {
            wake: patterns(subscription.wake),
            until: patterns(subscription.until),
        };
        Ok(services.streams.subscribe(&object, &key, interest, source)?)
    }

    /// Reads a stream through; only its end stays in memory.
    pub(super) async fn read_tail(&mut self, query: EventQuery) -> Result<EventTail, Error> {
        let path = &query.path_and_query;
        let call = HostCall::HttpReadEvents;
        let (services, key, upstream) = self.upstream(call, &query.upstream, "GET", path).await?;
        self.counts.upstream_reads += 1;
        let at_most = |wanted: Option<u32>, limit: usize| match wanted {
            None | Some(0) => limit,
            Some(wanted) => limit.min(wanted as usize),
        };
        let wanted = TailQuery {
            last: at_most(query.max_events, EVENTS),
            bytes: at_most(query.max_bytes, BYTES),
            timeout: match query.timeout {
                None | Some(0) => READING,
                Some(ms) => Duration::from_millis(ms).min(READING),
            },
            select: patterns(query.select),
            until: patterns(query.until),
        };
        let started = Instant::now();
        let tail = services
            .upstreams
            .read_events(&upstream, path, &wanted, &Secrets(&services))
            .await;
        let code = if tail.is_ok() { 200 } else { 0 };
        services
            .metrics
            .record_upstream(&key.namespace, &key.name, code, started.elapsed());
        let tail = tail?;
        self.gives(tail.events.iter().map(|e| e.data.len() + e.name.len()).sum())?;
        let events = tail.events.into_iter().map(|event| Event {
            id: event.id,
            name: event.name,
            data: event.data,
        });
        Ok(EventTail {
            events: events.collect(),
            skipped: tail.skipped,
            complete: tail.complete,
        })
    }
}

fn patterns(matches: Vec<crate::contract::bindings::http::EventMatch>) -> Vec<EventPattern> {
    matches.into_iter().map(Into::into).collect()
}
