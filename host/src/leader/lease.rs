//! Campaigns for leadership: sends what [`crate::leader::election`] decides, and opens the [`Gate`] accordingly.
//!
//! On a thread and with a connection of its own: however busy the reconciles are, the lease is renewed.

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
        api::{ApiError, Cluster, Patch, parse},
        fence::Gate,
    },
    leader::election::{Answer, Elector, Lease, Record, Request, Step, Timing},
};

/// How a host campaigns.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster. A configuration, not a client: the connection is not shared.
    pub config: kube::Config,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name: hosts of the same lease stand in for each other.
    pub name: String,
    /// This process, and no other.
    pub identity: String,
    /// The durations.
    pub timing: Timing,
}

/// A running campaign. Dropped, it ends and keeps the lease until it expires, as a crash would.
pub struct Campaign {
    resign: oneshot::Sender<()>,
    ended: oneshot::Receiver<anyhow::Error>,
    _stop: DropGuard,
}

impl Campaign {
    /// Begins to campaign; the gate is open while it leads.
    pub fn start(settings: Settings, gate: Gate) -> anyhow::Result<Self> {
        settings.timing.check().map_err(anyhow::Error::msg)?;
        for (what, name) in [("name", &settings.name), ("namespace", &settings.namespace)] {
            let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
            if name.is_empty() || !name.bytes().all(fits) || name.starts_with('.') {
                anyhow::bail!("{name:?} can't be the lease's {what}: a-z, 0-9 and - are used");
            }
        }
        anyhow::ensure!(!settings.identity.is_empty(), "leader election needs an identity");
        let (resign, resigning) = oneshot::channel();
        let (ending, ended) = oneshot::channel();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new().name("lease".into()).spawn(move || {
            let over = runtime.block_on(async {
                tokio::select! {
                    over = campaign(&settings, &gate, resigning) => over,
                    () = stopped.cancelled() => Ok(()),
                }
            });
            gate.close();
            if let Err(e) = over {
                let _ = ending.send(e);
            }
        })?;
        Ok(Self {
            resign,
            ended,
            _stop: stop.drop_guard(),
        })
    }

    /// Waits until the campaign fails; it never ends by itself.
    pub async fn failed(&mut self) -> anyhow::Error {
        let ended = (&mut self.ended).await;
        ended.unwrap_or_else(|_| anyhow::anyhow!("leader election ended"))
    }

    /// Leads no more, and lets the lease go so that another can take it at once. Gives whether that was
    /// said in time.
    pub async fn resign(self, patience: Duration) -> bool {
        let _ = self.resign.send(());
        // The other end is dropped when all is said.
        tokio::time::timeout(patience, self.ended).await.is_ok()
    }
}

/// Runs until told to resign and the lease is let go.
async fn campaign(
    settings: &Settings,
    gate: &Gate,
    mut resigning: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    let cluster = Cluster::new(kube::Client::try_from(settings.config.clone())?);
    let post = Post::new(&cluster, settings);
    let start = Instant::now();
    let mut elector = Elector::new(&settings.identity, settings.timing.clone());
    let mut said = Said::default();
    let mut follow = None;
    let mut resigned = false;
    loop {
        let step = elector.step(start.elapsed(), &micro_time());
        said.publish(&elector, start, gate);
        match step {
            Step::Done => return Ok(()),
            Step::Send(request, give_up) => {
                if matches!(request, Request::Read) && gate.term().is_some() {
                    gate.reread();
                }
                let sending = timeout_at((start + give_up).into(), post.send(&request));
                let answer = sending.await.unwrap_or_else(|_| {
                    warn!(lease = post.object, "lease request timed out");
                    Answer::Failed
                });
                elector.answered(start.elapsed(), answer);
                said.publish(&elector, start, gate);
            }
            Step::Wait(until) => {
                let leads = elector.leads(start.elapsed()).is_some();
                tokio::select! {
                    _ = &mut resigning, if !resigned => {
                        // First the writes, then the lease.
                        gate.close();
                        elector.resign();
                        resigned = true;
                    }
                    () = post.changed(&mut follow, elector.version()), if !leads => elector.nudge(),
                    () = tokio::time::sleep_until((start + until).into()) => {}
                }
            }
        }
    }
}

/// What was last made known.
#[derive(Default)]
struct Said {
    term: Option<u64>,
    holder: String,
}

impl Said {
    fn publish(&mut self, elector: &Elector, start: Instant, gate: &Gate) {
        let leads = elector.leads(start.elapsed());
        match leads {
            Some((term, until)) => gate.lead(term, start + until),
            None => gate.close(),
        }
        let term = leads.map(|(term, _)| term);
        let holder = elector.holder();
        if self.term != term {
            match term {
                Some(term) => info!(term, "became leader"),
                None => warn!(holder, "lost leadership, standing by"),
            }
        } else if term.is_none() && self.holder != holder {
            match holder {
                "" => info!("waiting for leadership"),
                holder => info!(holder, "standing by"),
            }
        }
        self.term = term;
        holder.clone_into(&mut self.holder);
    }
}

/// The Lease at the API server.
struct Post<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    name: &'a str,
    collection: String,
    object: String,
}

impl<'a> Post<'a> {
    fn new(cluster: &'a Cluster, settings: &'a Settings) -> Self {
        let (namespace, name) = (&*settings.namespace, &*settings.name);
        let collection = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        Self {
            cluster,
            namespace,
            name,
            object: format!("{collection}/{name}"),
            collection,
        }
    }

    async fn send(&self, request: &Request) -> Answer {
        let answer = match request {
            Request::Read => self.cluster.get(&self.object).await,
            Request::Create(record) => {
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.name, "namespace": self.namespace},
                    "spec": spec(record),
                });
                let path = format!("{}?fieldManager=ostler", self.collection);
                self.cluster.create(&path, lease.to_string().into_bytes()).await
            }
            Request::Update(lease) => {
                let patch = json!({
                    "metadata": {"resourceVersion": &*lease.version},
                    "spec": spec(&lease.record),
                });
                let path = format!("{}?fieldManager=ostler", self.object);
                self.cluster
                    .patch(&path, Patch::Merge, patch.to_string().into_bytes())
                    .await
            }
        };
        match answer.and_then(|bytes| lease(&bytes)) {
            Ok(lease) => Answer::Lease(lease),
            // For a creation it is the namespace that is missing: that won't change at once.
            Err(e) if e.code() == 404 && !matches!(request, Request::Create(_)) => Answer::Missing,
            Err(e) if e.code() == 409 => Answer::Conflict,
            Err(e) => {
                warn!(lease = self.object, error = %e, "lease request failed");
                Answer::Failed
            }
        }
    }

    /// Waits until the Lease changes, if that can be watched. Opened anew whenever it is waited for again.
    async fn changed(&self, follow: &mut Option<Body>, version: Option<&str>) {
        let Some(version) = version else {
            return pending().await;
        };
        let body = match follow {
            Some(body) => body,
            None => {
                let path = format!(
                    "{}?watch=true&fieldSelector=metadata.name%3D{}&resourceVersion={version}&timeoutSeconds=300",
                    self.collection, self.name
                );
                match self.cluster.watch(&path, None).await {
                    Ok(body) => follow.insert(body),
                    Err(_) => return pending().await,
                }
            }
        };
        // Whatever it is: the Lease is read then.
        if !matches!(body.frame().await, Some(Ok(_))) {
            *follow = None;
            pending().await
        }
    }
}

fn spec(record: &Record) -> Value {
    json!({
        "holderIdentity": &*record.holder,
        "leaseDurationSeconds": record.seconds,
        "acquireTime": &*record.acquired,
        "renewTime": &*record.renewed,
        "leaseTransitions": record.transitions,
    })
}

fn lease(bytes: &[u8]) -> Result<Lease, ApiError> {
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
    let object: Object = parse(bytes)?;
    let spec = object.spec.unwrap_or_default();
    let text = |text: Option<String>| text.unwrap_or_default().into();
    let number = |n: Option<i32>| u64::try_from(n.unwrap_or(0)).unwrap_or(0);
    Ok(Lease {
        version: object.metadata.resource_version.into(),
        record: Record {
            holder: text(spec.holder_identity),
            seconds: number(spec.lease_duration_seconds),
            acquired: text(spec.acquire_time),
            renewed: text(spec.renew_time),
            transitions: number(spec.lease_transitions),
        },
    })
}

/// Now, as `metav1.MicroTime`.
fn micro_time() -> String {
    format!("{:.6}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_and_read_as_kubernetes_has_it() {
        let record = Record {
            holder: "a".into(),
            seconds: 15,
            acquired: "2026-01-02T03:04:05.000006Z".into(),
            renewed: micro_time().into(),
            transitions: 3,
        };
        assert_eq!(record.renewed.len(), record.acquired.len(), "{}", record.renewed);
        let stored = json!({"metadata": {"name": "l", "resourceVersion": "7"}, "spec": spec(&record)});
        let read = lease(stored.to_string().as_bytes()).expect("a lease");
        assert_eq!((&*read.version, read.record), ("7", record));
        let bare = lease(br#"{"metadata": {"resourceVersion": "1"}, "spec": {}}"#).expect("a lease");
        assert_eq!(bare.record, Record::default());
    }
}
