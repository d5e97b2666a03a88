//! The leader elector: sends the requests that [`crate::leader::election`] decides on, and opens the [`WriteFence`]
//! accordingly.
//!
//! It runs on a thread and a connection of its own, so that the lease is renewed however busy the reconciles are.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use crate::{
    client::{
        api::{ApiClient, ApiError, PatchType, parse_response},
        connection::connect,
        fence::WriteFence,
    },
    kube::well_known::{HOST_FIELD_MANAGER, bookkeeping::SECURE_ENDPOINT},
    leader::{
        election::{ElectionMachine, ElectionStep, Lease, LeaseRecord, LeaseRequest, LeaseResponse, Timing},
        endpoint::OwnEndpoint,
    },
};

/// Settings of leader election.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// The cluster. A configuration and not a client, because the connection is not shared.
    pub config: kube::Config,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease; hosts with the same Lease stand in for each other.
    pub name: String,
    /// Identity of this process, which no other may have.
    pub identity: String,
    /// Durations of the election.
    pub timing: Timing,
    /// The secure address of this process, which the Lease tells of while it leads.
    pub endpoint: OwnEndpoint,
}

/// A running leader elector. On drop it stops without releasing the lease, which then expires as after a crash.
pub struct LeaderElector {
    release: oneshot::Sender<()>,
    ended: oneshot::Receiver<anyhow::Error>,
    _stop: DropGuard,
}

impl LeaderElector {
    /// Starts the elector. The fence is open while this host leads.
    pub fn start(settings: ElectionSettings, fence: WriteFence) -> anyhow::Result<Self> {
        settings.timing.validate().map_err(anyhow::Error::msg)?;
        for (what, name) in [("name", &settings.name), ("namespace", &settings.namespace)] {
            let is_valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
            if name.is_empty() || !name.bytes().all(is_valid) || name.starts_with('.') {
                anyhow::bail!("{name:?} can't be the lease's {what}: a-z, 0-9 and - are used");
            }
        }
        anyhow::ensure!(!settings.identity.is_empty(), "leader election needs an identity");
        let (release, release_requested) = oneshot::channel();
        let (report_end, ended) = oneshot::channel();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new().name("lease".into()).spawn(move || {
            let result = runtime.block_on(async {
                tokio::select! {
                    result = run_election(&settings, &fence, release_requested) => result,
                    () = stopped.cancelled() => Ok(()),
                }
            });
            fence.close();
            if let Err(e) = result {
                let _ = report_end.send(e);
            }
        })?;
        Ok(Self {
            release,
            ended,
            _stop: stop.drop_guard(),
        })
    }

    /// Waits until the election fails; it never ends by itself.
    pub async fn wait_failure(&mut self) -> anyhow::Error {
        let ended = (&mut self.ended).await;
        ended.unwrap_or_else(|_| anyhow::anyhow!("leader election ended"))
    }

    /// Stops leading and releases the lease, so that another host can take it at once. Returns true if the release
    /// completed within the timeout.
    pub async fn release(self, timeout: Duration) -> bool {
        let _ = self.release.send(());
        // The thread drops the other end of the channel once the lease is released.
        tokio::time::timeout(timeout, self.ended).await.is_ok()
    }
}

/// Runs the election until a release was requested and the lease is released.
async fn run_election(
    settings: &ElectionSettings,
    fence: &WriteFence,
    mut release_requested: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    let client = ApiClient::new(connect(settings.config.clone())?);
    let lease_client = LeaseClient::new(&client, settings);
    let start = Instant::now();
    let mut election = ElectionMachine::new(&settings.identity, settings.timing.clone());
    let mut announced = Announced::default();
    let mut lease_watch = None;
    let mut released = false;
    loop {
        let step = election.next_step(start.elapsed(), &format_micro_time());
        announced.publish(&election, start, fence);
        match step {
            ElectionStep::Done => return Ok(()),
            ElectionStep::Send(request, give_up) => {
                if matches!(request, LeaseRequest::Read) && fence.term().is_some() {
                    fence.count_reread();
                }
                let sending = timeout_at((start + give_up).into(), lease_client.send(&request));
                let response = sending.await.unwrap_or_else(|_| {
                    warn!(lease = lease_client.object, "lease request timed out");
                    LeaseResponse::Failed
                });
                election.on_response(start.elapsed(), response);
                announced.publish(&election, start, fence);
            }
            ElectionStep::Wait(until) => {
                let leads = election.leadership(start.elapsed()).is_some();
                tokio::select! {
                    _ = &mut release_requested, if !released => {
                        // Writes must end before another host can take the lease.
                        fence.close();
                        election.release();
                        released = true;
                    }
                    () = lease_client.wait_change(&mut lease_watch, election.version()), if !leads => {
                        election.on_lease_change();
                    }
                    () = tokio::time::sleep_until((start + until).into()) => {}
                }
            }
        }
    }
}

/// The leadership that was last published and logged.
#[derive(Default)]
struct Announced {
    term: Option<u64>,
    holder: String,
}

impl Announced {
    fn publish(&mut self, election: &ElectionMachine, start: Instant, fence: &WriteFence) {
        let leadership = election.leadership(start.elapsed());
        match leadership {
            Some(leadership) => fence.open_until(leadership.term, start + leadership.until),
            None => fence.close(),
        }
        let term = leadership.map(|leadership| leadership.term);
        let holder = election.holder();
        if self.term != term {
            match term {
                Some(term) => info!(term, "became leader"),
                None => warn!(holder, "lost leadership, standing by"),
            }
        } else if term.is_none() && self.holder != holder {
            match holder {
                "" => info!("no host leads"),
                holder => info!(holder, "standing by"),
            }
        }
        self.term = term;
        holder.clone_into(&mut self.holder);
    }
}

/// Requests to one Lease.
struct LeaseClient<'a> {
    client: &'a ApiClient,
    namespace: &'a str,
    name: &'a str,
    endpoint: &'a OwnEndpoint,
    collection: String,
    object: String,
}

impl<'a> LeaseClient<'a> {
    fn new(client: &'a ApiClient, settings: &'a ElectionSettings) -> Self {
        let (namespace, name) = (&*settings.namespace, &*settings.name);
        let collection = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        Self {
            client,
            namespace,
            name,
            endpoint: &settings.endpoint,
            object: format!("{collection}/{name}"),
            collection,
        }
    }

    async fn send(&self, request: &LeaseRequest) -> LeaseResponse {
        let response = match request {
            LeaseRequest::Read => self.client.get(&self.object).await,
            LeaseRequest::Create(record) => {
                let annotations = self
                    .endpoint(record)
                    .map(|endpoint| json!({SECURE_ENDPOINT: endpoint}));
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.name, "namespace": self.namespace, "annotations": annotations},
                    "spec": lease_spec(record),
                });
                let path = format!("{}?fieldManager={HOST_FIELD_MANAGER}", self.collection);
                self.client.create(&path, lease.to_string().into_bytes()).await
            }
            LeaseRequest::Update(lease) => {
                // Null removes that of a former holder.
                let annotations = json!({SECURE_ENDPOINT: self.endpoint(&lease.record)});
                let patch = json!({
                    "metadata": {"resourceVersion": &*lease.version, "annotations": annotations},
                    "spec": lease_spec(&lease.record),
                });
                let path = format!("{}?fieldManager={HOST_FIELD_MANAGER}", self.object);
                self.client
                    .patch(&path, PatchType::Merge, patch.to_string().into_bytes())
                    .await
            }
        };
        match response.and_then(|bytes| parse_lease(&bytes)) {
            Ok(lease) => LeaseResponse::Lease(lease),
            // A creation answers 404 when the namespace is missing, which will not change at once.
            Err(e) if e.code() == 404 && !matches!(request, LeaseRequest::Create(_)) => {
                LeaseResponse::Missing
            }
            Err(e) if e.code() == 409 => LeaseResponse::Conflict,
            Err(e) => {
                warn!(lease = self.object, "{e}");
                LeaseResponse::Failed
            }
        }
    }

    /// The endpoint that a Lease with this record tells of, as JSON.
    fn endpoint(&self, record: &LeaseRecord) -> Option<String> {
        let held = (!record.holder.is_empty())
            .then(|| self.endpoint.describe())
            .flatten();
        held.map(|endpoint| json!(endpoint).to_string())
    }

    /// Waits until the Lease changes, or for ever if it cannot be watched. A broken watch is opened again on the next
    /// call.
    async fn wait_change(&self, lease_watch: &mut Option<Body>, version: Option<&str>) {
        let Some(version) = version else {
            return pending().await;
        };
        let body = match lease_watch {
            Some(body) => body,
            None => {
                let path = format!(
                    "{}?watch=true&fieldSelector=metadata.name%3D{}&resourceVersion={version}&timeoutSeconds=300",
                    self.collection, self.name
                );
                match self.client.watch(&path, None).await {
                    Ok(body) => lease_watch.insert(body),
                    Err(_) => return pending().await,
                }
            }
        };
        // The content of the event does not matter, because the Lease is read next.
        if !matches!(body.frame().await, Some(Ok(_))) {
            *lease_watch = None;
            pending().await
        }
    }
}

fn lease_spec(record: &LeaseRecord) -> Value {
    json!({
        "holderIdentity": &*record.holder,
        "leaseDurationSeconds": record.seconds,
        "acquireTime": &*record.acquired,
        "renewTime": &*record.renewed,
        "leaseTransitions": record.transitions,
    })
}

fn parse_lease(bytes: &[u8]) -> Result<Lease, ApiError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Object {
        metadata: Metadata,
        #[serde(default)]
        spec: Option<Spec>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        holder_identity: Option<String>,
        lease_duration_seconds: Option<i32>,
        acquire_time: Option<String>,
        renew_time: Option<String>,
        lease_transitions: Option<i32>,
    }
    let object: Object = parse_response(bytes)?;
    let spec = object.spec.unwrap_or_default();
    let text = |text: Option<String>| text.unwrap_or_default().into();
    let number = |n: Option<i32>| u64::try_from(n.unwrap_or(0)).unwrap_or(0);
    Ok(Lease {
        version: object.metadata.resource_version.into(),
        record: LeaseRecord {
            holder: text(spec.holder_identity),
            seconds: number(spec.lease_duration_seconds),
            acquired: text(spec.acquire_time),
            renewed: text(spec.renew_time),
            transitions: number(spec.lease_transitions),
        },
    })
}

/// Formats the current time as `metav1.MicroTime`.
fn format_micro_time() -> String {
    format!("{:.6}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_record_survives_a_round_trip_as_kubernetes_writes_it() {
        let record = LeaseRecord {
            holder: "a".into(),
            seconds: 15,
            acquired: "2026-01-02T03:04:05.000006Z".into(),
            renewed: format_micro_time().into(),
            transitions: 3,
        };
        assert_eq!(record.renewed.len(), record.acquired.len(), "{}", record.renewed);
        let stored = json!({"metadata": {"name": "l", "resourceVersion": "7"}, "spec": lease_spec(&record)});
        let read = parse_lease(stored.to_string().as_bytes()).expect("a lease");
        assert_eq!((&*read.version, read.record), ("7", record));
        let bare = parse_lease(br#"{"metadata": {"resourceVersion": "1"}, "spec": {}}"#).expect("a lease");
        assert_eq!(bare.record, LeaseRecord::default());
    }
}
