//! Event streams: subscribed to on behalf of the object, or read to their end.

use std::time::{Duration, Instant};

use super::{ResolvedUpstream, StoreSecrets};
use crate::{
    contract::{
        bindings::{
            http::{Event, EventQuery, EventTail, Subscription},
            types::Error,
        },
        limits::Limit,
    },
    observe::metrics::HostCall,
    sandbox::capabilities::PluginCall,
    upstream::{EventPattern, StreamKey, StreamSubscription, TailQuery},
};

/// Maximum number of events of one read.
const MAX_EVENTS: usize = 1000;
/// Maximum number of bytes of the events of one read.
const MAX_EVENT_BYTES: usize = 256 << 10;
/// Longest time of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

impl PluginCall {
    /// Subscribes to a stream, which stays open while each reconcile of the object subscribes to it again.
    pub(super) async fn subscribe_stream(&mut self, subscription: Subscription) -> Result<(), Error> {
        self.context.deny_in_hook("http.subscribe")?;
        let path = &subscription.path_and_query;
        let call = HostCall::HttpSubscribe;
        let ResolvedUpstream {
            services,
            key,
            object: upstream,
        } = self
            .resolve_upstream(call, &subscription.upstream, "GET", path)
            .await?;
        let Some(object) = self.context.target_key().cloned() else {
            return Ok(());
        };
        let key = StreamKey {
            upstream: key,
            path: path.as_str().into(),
        };
        let max = self.limits().subscriptions as usize;
        if !self.effects.streams.contains(&key) && self.effects.streams.len() >= max {
            return Err(self.limit_exceeded(Limit::Subscriptions, "event streams of one object"));
        }
        // It is recorded before the stream opens: the end of this reconcile must not close it while events arrive.
        self.effects.streams.insert(key.clone());
        let source = services
            .upstreams
            .clients
            .stream_source(&upstream, &StoreSecrets(&services.cache.store))?;
        let interest = StreamSubscription {
            wake: convert_patterns(subscription.wake),
            until: convert_patterns(subscription.until),
        };
        let subscribed = services
            .upstreams
            .streams
            .subscribe(&object, &key, interest, source);
        Ok(subscribed.map_err(|e| e.at_server(&upstream))?)
    }

    /// Reads a stream to its end. Only the last events are kept in memory.
    pub(super) async fn read_tail(&mut self, query: EventQuery) -> Result<EventTail, Error> {
        let path = &query.path_and_query;
        let call = HostCall::HttpReadEvents;
        let ResolvedUpstream {
            services,
            key,
            object: upstream,
        } = self.resolve_upstream(call, &query.upstream, "GET", path).await?;
        self.effects.record_request(true);
        let at_most = |requested: Option<u32>, limit: usize| match requested {
            None | Some(0) => limit,
            Some(requested) => limit.min(requested as usize),
        };
        let tail_query = TailQuery {
            last: at_most(query.max_events, MAX_EVENTS),
            bytes: at_most(query.max_bytes, MAX_EVENT_BYTES),
            timeout: match query.timeout {
                None | Some(0) => READ_TIMEOUT,
                Some(ms) => Duration::from_millis(ms).min(READ_TIMEOUT),
            },
            select: convert_patterns(query.select),
            until: convert_patterns(query.until),
        };
        let started = Instant::now();
        let tail = services
            .upstreams
            .clients
            .read_events(&upstream, path, &tail_query, &StoreSecrets(&services.cache.store))
            .await;
        let code = if tail.is_ok() { 200 } else { 0 };
        services
            .metrics
            .record_upstream(&key.namespace, &key.name, code, started.elapsed());
        let tail = tail.map_err(|e| e.at_server(&upstream))?;
        self.charge_bytes_from_host(tail.events.iter().map(|e| e.data.len() + e.name.len()).sum())?;
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

/// Converts the patterns of the contract.
fn convert_patterns(matches: Vec<crate::contract::bindings::http::EventMatch>) -> Vec<EventPattern> {
    matches.into_iter().map(Into::into).collect()
}
