//! Completeness of the capabilities: every import of the contract is denied without its grant, or listed here with the
//! reason why it needs none.

mod logs;
mod reads;
mod writes;

use std::{collections::BTreeSet, net::TcpListener};

use futures::FutureExt;

use super::*;
use crate::{
    cache::{informer::Informers, store::Store},
    client::{access_review::AccessReviewer, api::ApiClient, fence::WriteFence},
    cluster::ClusterPool,
    contract::{
        bindings::{
            cache, clock, config, events, http, kubernetes, log, messaging, metrics, references, status,
        },
        inspection,
        memory_budget::MemoryBudget,
    },
    effect::writer::ApiWriter,
    kube::{backoff::Backoff, key::Gvk, scope::NamespaceScope, secret_view::DIGEST_KEY_SECRET},
    policy::grants::{Grant, GrantVerb, Permissions, PluginGrants},
    sandbox::services::{ServiceParts, SharedCache, UpstreamAccess},
    schedule::{dispatcher::Dispatcher, queue::Queue},
    upstream::{ClientPool, EventStreams},
};

/// The grant that a function needs.
#[derive(Clone, Copy, Debug)]
enum Need {
    Verb(GrantVerb),
    Upstreams,
    Messages,
    Secrets,
    Events,
}

impl Need {
    /// All permissions except this one.
    fn without(self) -> Permissions {
        let mut all = all_permissions();
        match self {
            Self::Verb(verb) => {
                for grant in &mut all.kubernetes {
                    grant.verbs.retain(|v| *v != verb);
                }
            }
            Self::Upstreams => all.upstreams.clear(),
            Self::Messages => all.messages.clear(),
            Self::Secrets => all.secrets.clear(),
            Self::Events => all.events = false,
        }
        all
    }
}

/// Calls a function and polls it once. None if it is pending: it waits for the API server, so it was not denied.
type PollOnce = fn(&mut PluginCall) -> Option<Result<(), Error>>;

/// The expectation for a function.
enum Entry {
    Needs(Need, PollOnce),
    /// It needs no grant, for this reason.
    Free(&'static str),
}

/// Lists the expectation for every function of the contract.
fn list_entries() -> Vec<(&'static str, Entry)> {
    use Entry::{Free, Needs};
    vec![
        (
            "kubernetes.get",
            Needs(Need::Verb(GrantVerb::Get), |c| {
                poll_once(kubernetes::Host::get(
                    c,
                    config_map(),
                    kubernetes::GetOptions {
                        live: false,
                        projection: kubernetes::Projection::Full,
                    },
                ))
            }),
        ),
        (
            "kubernetes.list",
            Needs(Need::Verb(GrantVerb::List), |c| {
                let options = kubernetes::ListOptions {
                    cluster: None,
                    namespace: Some("a".into()),
                    label_selector: None,
                    field_selector: None,
                    projection: kubernetes::Projection::Full,
                    limit: None,
                    continue_token: None,
                    live: false,
                };
                poll_once(kubernetes::Host::list(c, config_map().gvk, options))
            }),
        ),
        (
            "kubernetes.require-ready",
            Needs(Need::Verb(GrantVerb::Get), |c| {
                poll_once(kubernetes::Host::require_ready(c, config_map()))
            }),
        ),
        (
            "kubernetes.require-condition",
            Needs(Need::Verb(GrantVerb::Get), |c| {
                let status = types::ConditionStatus::True;
                poll_once(kubernetes::Host::require_condition(
                    c,
                    config_map(),
                    "Available".into(),
                    status,
                ))
            }),
        ),
        (
            "kubernetes.apply",
            Needs(Need::Verb(GrantVerb::Apply), |c| {
                poll_once(kubernetes::Host::apply(c, object(), apply_options(None, vec![])))
            }),
        ),
        (
            "kubernetes.create",
            Needs(Need::Verb(GrantVerb::Create), |c| {
                let options = kubernetes::CreateOptions {
                    cluster: None,
                    owned: false,
                    substitutions: vec![],
                };
                poll_once(kubernetes::Host::create(c, object(), options))
            }),
        ),
        (
            "kubernetes.patch",
            Needs(Need::Verb(GrantVerb::Patch), |c| {
                let patch = br#"{"data":{"a":"b"}}"#.to_vec();
                poll_once(kubernetes::Host::patch(
                    c,
                    config_map(),
                    patch,
                    no_preconditions(),
                ))
            }),
        ),
        (
            "kubernetes.patch-subresource",
            Needs(Need::Verb(GrantVerb::Patch), |c| {
                let patch = br#"{"spec":{"containers":[]}}"#.to_vec();
                poll_once(kubernetes::Host::patch_subresource(
                    c,
                    pod(),
                    "resize".into(),
                    patch,
                    no_preconditions(),
                ))
            }),
        ),
        (
            "kubernetes.read-log",
            Needs(Need::Verb(GrantVerb::Get), |c| {
                let options = kubernetes::LogOptions {
                    container: None,
                    tail_lines: 1,
                    previous: false,
                };
                poll_once(kubernetes::Host::read_log(c, pod(), options))
            }),
        ),
        (
            "kubernetes.delete",
            Needs(Need::Verb(GrantVerb::Delete), |c| {
                let options = kubernetes::DeleteOptions {
                    propagation: kubernetes::Propagation::Background,
                    preconditions: no_preconditions(),
                };
                poll_once(kubernetes::Host::delete(c, config_map(), options))
            }),
        ),
        (
            "references.hold",
            Needs(Need::Verb(GrantVerb::Hold), |c| {
                poll_once(references::Host::hold(c, config_map()))
            }),
        ),
        (
            "references.list-holders",
            Needs(Need::Verb(GrantVerb::Get), |c| {
                poll_once(references::Host::list_holders(c, config_map()))
            }),
        ),
        (
            "http.send",
            Needs(Need::Upstreams, |c| {
                poll_once(http::Host::send(c, request(vec![])))
            }),
        ),
        (
            "http.send-all",
            Needs(Need::Upstreams, |c| {
                let sent = http::Host::send_all(c, vec![request(vec![])]).now_or_never()?;
                sent.into_iter().next().map(|answer| answer.map(drop))
            }),
        ),
        (
            "http.secret-digest",
            Needs(Need::Secrets, |c| {
                poll_once(http::Host::secret_digest(c, secret_key()))
            }),
        ),
        (
            "http.subscribe",
            Needs(Need::Upstreams, |c| {
                let subscription = http::Subscription {
                    upstream: upstream(),
                    path_and_query: "/".into(),
                    wake: vec![],
                    until: vec![],
                };
                poll_once(http::Host::subscribe(c, subscription))
            }),
        ),
        (
            "http.read-events",
            Needs(Need::Upstreams, |c| {
                let query = http::EventQuery {
                    upstream: upstream(),
                    path_and_query: "/".into(),
                    select: vec![],
                    until: vec![],
                    max_events: None,
                    max_bytes: None,
                    timeout: None,
                };
                poll_once(http::Host::read_events(c, query))
            }),
        ),
        (
            "messaging.publish",
            Needs(Need::Messages, |c| {
                poll_once(messaging::Host::publish(c, upstream(), message()))
            }),
        ),
        (
            "events.emit",
            Needs(Need::Events, |c| {
                // It has no result. Without the grant it returns at the first poll, because nothing is sent.
                let emitted = events::Host::emit(c, events::EventType::Normal, "R".into(), "n".into());
                emitted
                    .now_or_never()
                    .map(|()| Err(Error::Denied("dropped".into())))
            }),
        ),
        (
            "status.checkpoint",
            Free("writes the status of the reconciled object only, which is the purpose of a plugin"),
        ),
        (
            "log.write",
            Free("a line in the host's log, limited in number and length"),
        ),
        ("metrics.counter", Free("a series of its own, limited in number")),
        ("metrics.gauge", Free("a series of its own, limited in number")),
        ("permits.acquire", Free("a semaphore of this plugin only")),
        ("permits.release", Free("a semaphore of this plugin only")),
        ("clock.now", Free("returns the time")),
        ("clock.remaining", Free("returns the time")),
        (
            "config.get",
            Free("the configuration that the administrator gave to this plugin"),
        ),
        (
            "cache.get",
            Free("a cache of this plugin and object only, limited in size"),
        ),
        (
            "cache.set",
            Free("a cache of this plugin and object only, limited in size"),
        ),
        (
            "cache.delete",
            Free("a cache of this plugin and object only, limited in size"),
        ),
    ]
}

/// Polls a call once.
fn poll_once<T>(call: impl Future<Output = Result<T, Error>>) -> Option<Result<(), Error>> {
    call.now_or_never().map(|answer| answer.map(drop))
}

fn config_map() -> types::ObjectRef {
    (&ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "a", "b")).into()
}

fn pod() -> types::ObjectRef {
    (&ObjectRef::new(Gvk::new("", "v1", "Pod"), "a", "b")).into()
}

fn object() -> Vec<u8> {
    br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","namespace":"a"}}"#.to_vec()
}

fn no_preconditions() -> kubernetes::Preconditions {
    kubernetes::Preconditions {
        uid: None,
        resource_version: None,
    }
}

fn apply_options(
    cluster: Option<String>,
    substitutions: Vec<types::Substitution>,
) -> kubernetes::ApplyOptions {
    kubernetes::ApplyOptions {
        cluster,
        owned: false,
        force: true,
        substitutions,
    }
}

fn secret_key() -> types::SecretKeyRef {
    types::SecretKeyRef {
        cluster: None,
        namespace: None,
        name: "s".into(),
        key: "k".into(),
    }
}

fn substitution(source: types::SecretSource) -> types::Substitution {
    types::Substitution {
        placeholder: "a-placeholder-long-enough".into(),
        source,
        encoding: types::Encoding::Plain,
    }
}

fn message() -> messaging::Message {
    messaging::Message {
        exchange: String::new(),
        routing_key: String::new(),
        properties: types::MessageProperties {
            content_type: None,
            content_encoding: None,
            headers: vec![],
            persistent: false,
            priority: None,
            correlation_id: None,
            reply_to: None,
            expiration: None,
            message_id: None,
            timestamp: None,
            type_: None,
            user_id: None,
            app_id: None,
        },
        body: vec![],
        mandatory: false,
    }
}

fn upstream() -> types::UpstreamRef {
    types::UpstreamRef {
        cluster: None,
        namespace: None,
        name: "u".into(),
    }
}

fn request(substitutions: Vec<types::Substitution>) -> http::Request {
    http::Request {
        upstream: upstream(),
        method: http::Method::Get,
        path_and_query: "/".into(),
        headers: vec![],
        body: None,
        substitutions,
        timeout: None,
    }
}

fn all_permissions() -> Permissions {
    let text = "
kubernetes:
- {kinds: [ConfigMap, Secret], verbs: [get, list, apply, create, patch, delete, hold]}
- {kinds: [Pod/resize], verbs: [patch]}
- {kinds: [Pod/log], verbs: [get]}
upstreams: [{}]
messages: [{exchanges: ['']}]
secrets: [{}]
events: true
";
    serde_saphyr::from_str(text).expect("parses")
}

/// Services with an API server that never responds but counts connections.
struct SilentCluster {
    listener: TcpListener,
    services: Arc<Services>,
}

impl SilentCluster {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let url = format!("http://{address}").parse().expect("a URL");
        let client = kube::Client::try_from(kube::Config::new(url)).expect("a client");
        Self {
            listener,
            services: build_services(client),
        }
    }

    fn call(&self, asks: Permissions, granted: &Permissions) -> Box<PluginCall> {
        build_call(&self.services, asks, granted)
    }

    /// Returns true if a connection was made.
    fn was_connected(&self) -> bool {
        self.listener.accept().is_ok()
    }
}

/// Services that use this client.
fn build_services(client: kube::Client) -> Arc<Services> {
    let api = ApiClient::new(client);
    let store = Arc::new(Store::default());
    let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
    let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::new(&[])));
    let informers = Informers::new(api.clone(), store.clone(), Arc::new(|_, _| {}));
    Arc::new(Services::new(ServiceParts {
        cache: SharedCache {
            store: store.clone(),
            informers: Arc::new(informers),
            namespaces: NamespaceScope::new(&[]),
        },
        reviewer: AccessReviewer::new(api.clone()),
        writer: ApiWriter::new(api, store, dispatcher.clone()),
        clusters: ClusterPool::default(),
        upstreams: UpstreamAccess {
            clients: ClientPool::default(),
            streams: EventStreams::new(WriteFence::default(), |_, _| {}),
            subscriptions: Arc::default(),
        },
        dispatcher,
        memory: MemoryBudget::unlimited(),
        fence: WriteFence::default(),
    }))
}

/// The call of a reconcile.
fn build_call(services: &Arc<Services>, asks: Permissions, granted: &Permissions) -> Box<PluginCall> {
    let gvk = Gvk::new("tests.ostler.dev", "v1alpha1", "Probe");
    let json = br#"{"metadata":{"name":"x","namespace":"a","uid":"u","resourceVersion":"1"}}"#;
    let (key, object) = KubeObject::parse(&gvk, json).expect("an object");
    let target = CallTarget {
        fresh_term: None,
        key,
        object: Arc::new(object),
        is_finalized: true,
        services: services.clone(),
    };
    let grant = Grant {
        permissions: granted.clone(),
        ..Grant::default()
    };
    let policy = PluginPolicy {
        plugin: "p".into(),
        grants: PluginGrants::new("p", "plugins.p.", Some(asks), grant),
        config: b"{}".to_vec(),
        limits: PluginLimits::default(),
    };
    PluginCall::new(Arc::new(policy), Some(target))
}

#[test]
fn every_import_is_listed() {
    let imports: BTreeSet<String> = inspection::list_imports().collect();
    let known: BTreeSet<String> = list_entries()
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let new: Vec<_> = imports.difference(&known).collect();
    assert!(
        new.is_empty(),
        "{new:?}: list here the grant that it needs, or the reason why it needs none"
    );
    let gone: Vec<_> = known.difference(&imports).collect();
    assert!(gone.is_empty(), "no longer in the contract: {gone:?}");
    assert!(imports.len() >= 27, "{imports:?}");
}

#[tokio::test]
async fn import_without_its_grant_is_denied() {
    let (cluster, mut refused) = (SilentCluster::new(), 0);
    for (name, entry) in list_entries() {
        match entry {
            Entry::Free(why) => assert!(!why.is_empty(), "{name}"),
            Entry::Needs(need, call) => {
                for (asks, granted, word) in [
                    (all_permissions(), need.without(), "grant it with"),
                    (
                        need.without(),
                        all_permissions(),
                        "its manifest does not ask for it",
                    ),
                    // A grant that follows the manifest is not named.
                    (need.without(), need.without(), "to plugin.yaml"),
                    (need.without(), Permissions::default(), "nor is it granted"),
                ] {
                    let answer = call(&mut cluster.call(asks, &granted));
                    let Some(Err(Error::Denied(why))) = &answer else {
                        panic!("{name} without {need:?}: {answer:?}");
                    };
                    assert!(why.contains(word) || name == "events.emit", "{name}: {why}");
                }
                // With the grant it is not denied, so the missing grant was the reason.
                let answer = call(&mut cluster.call(all_permissions(), &all_permissions()));
                assert!(
                    !matches!(answer, Some(Err(Error::Denied(_)))),
                    "{name}: {answer:?}"
                );
                refused += 1;
            }
        }
    }
    println!("{refused} imports refused without their grants");
    assert!(refused >= 17);
}

#[tokio::test]
async fn denied_call_sends_and_watches_nothing() {
    let cluster = SilentCluster::new();
    for (_, entry) in list_entries() {
        if let Entry::Needs(need, call) = entry {
            let mut denied = cluster.call(all_permissions(), &need.without());
            call(&mut denied);
            assert!(
                denied.effects.reads.is_empty() && denied.effects.writes.is_empty(),
                "{need:?}"
            );
        }
    }
    // Spawned tasks get to run.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!cluster.was_connected(), "the API server was asked");
    assert!(
        cluster.services.cache.informers.scopes().is_empty(),
        "something is watched"
    );
}

#[tokio::test]
async fn describe_is_denied_every_capability() {
    let grant = Grant::default();
    let policy = Arc::new(PluginPolicy {
        plugin: "p".into(),
        grants: PluginGrants::new("p", "", None, grant),
        config: br#"{"a": 1}"#.to_vec(),
        limits: PluginLimits::default(),
    });
    for (name, entry) in list_entries() {
        let Entry::Needs(_, call) = entry else {
            continue;
        };
        if name != "events.emit" {
            let answer = call(&mut PluginCall::new(policy.clone(), None));
            assert!(
                matches!(answer, Some(Err(Error::Denied(_)))),
                "{name}: {answer:?}"
            );
        }
    }
    let mut sealed = PluginCall::new(policy, None);
    assert_eq!(config::Host::get(&mut *sealed).await, b"{}");
    assert_eq!(clock::Host::now(&mut *sealed).await, 0);
    assert_eq!(cache::Host::get(&mut *sealed, "k".into()).await, None);
    assert!(cache::Host::set(&mut *sealed, "k".into(), vec![1]).await.is_err());
    assert!(
        status::Host::checkpoint(&mut *sealed, b"{}".to_vec())
            .await
            .is_err()
    );
    metrics::Host::counter(&mut *sealed, "n".into(), 1).await;
    log::Host::write(&mut *sealed, log::Level::Info, "m".into(), vec![]).await;
    assert_eq!(sealed.budget.bytes(), TransferredBytes::default());
}

/// Secrets in a request body need a grant of their own besides that of the upstream.
#[tokio::test]
async fn secret_in_body_without_its_grant_is_denied() {
    let cluster = SilentCluster::new();
    let sources = [
        || types::SecretSource::Key(secret_key()),
        || {
            types::SecretSource::Basic(types::BasicCredentials {
                username: types::Username::Literal("ada".into()),
                password: secret_key(),
            })
        },
        || {
            types::SecretSource::Basic(types::BasicCredentials {
                username: types::Username::Secret(secret_key()),
                password: secret_key(),
            })
        },
    ];
    for source in sources {
        let substitutions = || vec![substitution(source())];
        let mut call = cluster.call(all_permissions(), &Need::Secrets.without());
        let answer = poll_once(http::Host::send(&mut *call, request(substitutions())));
        assert!(
            matches!(&answer, Some(Err(Error::Denied(why))) if why.contains("name Secret s")),
            "{answer:?}"
        );
        let mut call = cluster.call(all_permissions(), &all_permissions());
        let answer = poll_once(http::Host::send(&mut *call, request(substitutions())));
        assert!(!matches!(answer, Some(Err(Error::Denied(_)))), "{answer:?}");
    }
}

/// The message of a panic may contain what the component has read.
#[tokio::test]
async fn panic_of_a_plugin_that_reads_secrets_is_withheld_from_the_trap() {
    let cluster = SilentCluster::new();
    let fields = || vec![("exception.location".to_owned(), "src/lib.rs:8".to_owned())];
    for (read_secrets, shown) in [(false, "hunter2 (src/lib.rs:8)"), (true, "in the log only")] {
        let permissions = || Permissions {
            read_secrets,
            ..all_permissions()
        };
        let mut call = cluster.call(permissions(), &permissions());
        log::Host::write(&mut *call, log::Level::Error, "hunter2".into(), fields()).await;
        let trap = call.explain_trap("unreachable".into()).to_string();
        assert!(trap.contains(shown), "{trap}");
        assert_eq!(trap.contains("hunter2"), !read_secrets, "{trap}");
        log::Host::write(&mut *call, log::Level::Error, "hunter2".into(), fields()).await;
        metrics::Host::counter(&mut *call, "n".into(), 1).await;
        let trap = call.explain_trap("unreachable".into());
        assert_eq!(
            trap.to_string(),
            "trapped: unreachable",
            "the call went on after the report"
        );
    }
}

/// A plugin that could read, replace or send the key of digests could find the values of digests by guessing.
#[tokio::test]
async fn key_of_digests_is_denied_with_all_grants() {
    let cluster = SilentCluster::new();
    let all = || Permissions {
        read_secrets: true,
        ..all_permissions()
    };
    let mut call = cluster.call(all(), &all());
    let name = DIGEST_KEY_SECRET;
    let secret = || types::ObjectRef {
        gvk: types::Gvk {
            group: String::new(),
            version: "v1".into(),
            kind: "Secret".into(),
        },
        cluster: None,
        namespace: Some("a".into()),
        name: name.into(),
    };
    let named = || types::SecretKeyRef {
        name: name.into(),
        ..secret_key()
    };
    let body = || {
        format!(r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"{name}","namespace":"a"}}}}"#)
            .into_bytes()
    };
    let create = kubernetes::CreateOptions {
        cluster: None,
        owned: false,
        substitutions: vec![],
    };
    let delete = kubernetes::DeleteOptions {
        propagation: kubernetes::Propagation::Background,
        preconditions: no_preconditions(),
    };
    let mut answers = vec![
        poll_once(kubernetes::Host::apply(
            &mut *call,
            body(),
            apply_options(None, vec![]),
        ))
        .map(Result::err),
        poll_once(kubernetes::Host::create(&mut *call, body(), create)).map(Result::err),
        poll_once(kubernetes::Host::patch(
            &mut *call,
            secret(),
            b"{}".to_vec(),
            no_preconditions(),
        ))
        .map(Result::err),
        poll_once(kubernetes::Host::delete(&mut *call, secret(), delete)).map(Result::err),
        poll_once(http::Host::secret_digest(&mut *call, named())).map(Result::err),
    ];
    let substitutions = vec![substitution(types::SecretSource::Key(named()))];
    answers.push(poll_once(http::Host::send(&mut *call, request(substitutions))).map(Result::err));
    for answer in answers {
        let denied = matches!(&answer, Some(Some(Error::Denied(why))) if why.contains("key of digests"));
        assert!(denied, "{answer:?}");
    }
}

/// A secret in a written object needs a grant for the namespace of the object; one for origins does not cover it.
#[tokio::test]
async fn secret_in_object_without_its_grant_is_denied() {
    let with_targets = |targets: &[&str]| {
        let mut granted = all_permissions();
        granted.secrets[0].target_namespaces = targets.iter().map(|&n| n.into()).collect();
        granted
    };
    let body = || br#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b","namespace":"a"}}"#.to_vec();
    let substitutions = || vec![substitution(types::SecretSource::Key(secret_key()))];
    let asked = with_targets(&["*"]);
    for (targets, denied) in [(&[][..], true), (&["other"], true), (&["a"], false)] {
        for creates in [false, true] {
            let services = build_services(secrets_client());
            let mut call = build_call(&services, asked.clone(), &with_targets(targets));
            let answer = if creates {
                let options = kubernetes::CreateOptions {
                    cluster: None,
                    owned: false,
                    substitutions: substitutions(),
                };
                kubernetes::Host::create(&mut *call, body(), options).boxed()
            } else {
                kubernetes::Host::apply(&mut *call, body(), apply_options(None, substitutions())).boxed()
            };
            let answer = tokio::time::timeout(Duration::from_millis(200), answer).await;
            let is_denied =
                matches!(&answer, Ok(Err(Error::Denied(why))) if why.contains("for Secrets in namespace a"));
            assert_eq!(is_denied, denied, "{targets:?} {creates}: {answer:?}");
        }
    }
}

/// An API server that knows the kind Secret and is silent otherwise.
fn secrets_client() -> kube::Client {
    let service = tower::service_fn(|request: ::http::Request<kube::client::Body>| async move {
        if request.uri().path() != "/api/v1" {
            std::future::pending::<()>().await;
        }
        let kinds = r#"{"resources": [{"name": "secrets", "kind": "Secret", "namespaced": true}]}"#;
        Ok::<_, std::io::Error>(::http::Response::new(axum::body::Body::from(kinds)))
    });
    kube::Client::new(service, "default")
}

/// The calls about an object or list of another cluster.
fn call_elsewhere(call: &mut PluginCall) -> Vec<Option<Result<(), Error>>> {
    let elsewhere = || Some("fleet/east".to_owned());
    let reference = || types::ObjectRef {
        cluster: elsewhere(),
        ..config_map()
    };
    let get = kubernetes::GetOptions {
        live: false,
        projection: kubernetes::Projection::Full,
    };
    let list = kubernetes::ListOptions {
        cluster: elsewhere(),
        namespace: Some("a".into()),
        label_selector: None,
        field_selector: None,
        projection: kubernetes::Projection::Metadata,
        limit: None,
        continue_token: None,
        live: false,
    };
    let create = kubernetes::CreateOptions {
        cluster: elsewhere(),
        owned: false,
        substitutions: vec![],
    };
    let delete = kubernetes::DeleteOptions {
        propagation: kubernetes::Propagation::Background,
        preconditions: no_preconditions(),
    };
    let apply = apply_options(elsewhere(), vec![]);
    let patch = b"{}".to_vec();
    vec![
        poll_once(kubernetes::Host::get(call, reference(), get)),
        poll_once(kubernetes::Host::require_ready(call, reference())),
        poll_once(kubernetes::Host::list(call, config_map().gvk, list)),
        poll_once(kubernetes::Host::apply(call, object(), apply)),
        poll_once(kubernetes::Host::create(call, object(), create)),
        poll_once(kubernetes::Host::patch(
            call,
            reference(),
            patch,
            no_preconditions(),
        )),
        poll_once(kubernetes::Host::delete(call, reference(), delete)),
    ]
}

/// A grant for a kind is about the host's own cluster unless it names others.
#[tokio::test]
async fn another_cluster_is_denied_without_a_grant_that_names_it() {
    let with_clusters = |clusters: &[&str]| {
        let mut permissions = all_permissions();
        for grant in &mut permissions.kubernetes {
            grant.clusters = clusters.iter().map(|&c| c.into()).collect();
        }
        permissions
    };
    for (clusters, denied) in [
        (&[][..], true),
        (&["fleet/west", "Same/*"], true),
        (&["fleet/e*"], false),
        (&["*/east"], false),
    ] {
        let cluster = SilentCluster::new();
        let granted = with_clusters(clusters);
        let mut call = cluster.call(granted.clone(), &granted);
        for answer in call_elsewhere(&mut call) {
            let is_denied =
                matches!(&answer, Some(Err(Error::Denied(why))) if why.contains("cluster fleet/east"));
            assert_eq!(is_denied, denied, "{clusters:?}: {answer:?}");
        }
        // What is granted waits for the Cluster object; nothing of the other cluster has been read.
        let read: Vec<String> = call.effects.reads.iter().map(|r| format!("{r:?}")).collect();
        let expected = if denied { 0 } else { 1 };
        assert_eq!(read.len(), expected, "{read:?}");
        assert!(read.iter().all(|r| r.contains("Cluster/fleet/east")), "{read:?}");
        let own = kubernetes::GetOptions {
            live: false,
            projection: kubernetes::Projection::Full,
        };
        if !clusters.is_empty() {
            let own = poll_once(kubernetes::Host::get(&mut *call, config_map(), own));
            assert!(
                matches!(own, Some(Err(Error::Denied(_)))),
                "the own cluster is not named"
            );
        }
    }
}

/// Parts of the contract that are possible on the host's own cluster only fail before anything is read or sent.
#[tokio::test]
async fn uses_of_the_own_cluster_only_are_unsupported_elsewhere() {
    let cluster = SilentCluster::new();
    let elsewhere = || Some("fleet/east".to_owned());
    let reference = || types::ObjectRef {
        cluster: elsewhere(),
        ..config_map()
    };
    let mut call = cluster.call(all_permissions(), &all_permissions());
    let mut answers = Vec::new();
    let inserted = vec![substitution(types::SecretSource::Key(secret_key()))];
    let create = kubernetes::CreateOptions {
        cluster: elsewhere(),
        owned: false,
        substitutions: inserted,
    };
    answers.push(poll_once(kubernetes::Host::create(&mut *call, object(), create)));
    answers.push(poll_once(references::Host::hold(&mut *call, reference())));
    answers.push(poll_once(references::Host::list_holders(&mut *call, reference())));
    let secret = types::SecretKeyRef {
        cluster: elsewhere(),
        ..secret_key()
    };
    answers.push(poll_once(http::Host::secret_digest(&mut *call, secret)));
    let mut request = request(vec![]);
    request.upstream.cluster = elsewhere();
    answers.push(poll_once(http::Host::send(&mut *call, request)));
    let mut broker = upstream();
    broker.cluster = elsewhere();
    answers.push(poll_once(messaging::Host::publish(&mut *call, broker, message())));
    for answer in answers {
        assert!(matches!(answer, Some(Err(Error::Unsupported(_)))), "{answer:?}");
    }
    assert!(call.effects.reads.is_empty() && !cluster.was_connected());
}

/// Without a finalizer an owner is gone before the host can delete what it owns on another cluster.
#[tokio::test]
async fn owned_object_elsewhere_needs_a_finalizer_of_its_owner() {
    let cluster = SilentCluster::new();
    for (is_finalized, is_refused) in [(false, true), (true, false)] {
        let mut call = cluster.call(all_permissions(), &all_permissions());
        call.context.target.as_mut().expect("a target").is_finalized = is_finalized;
        let owned = kubernetes::ApplyOptions {
            owned: true,
            ..apply_options(Some("fleet/east".into()), vec![])
        };
        let answer = poll_once(kubernetes::Host::apply(&mut *call, object(), owned));
        let refused = matches!(&answer, Some(Err(Error::Invalid(why))) if why.contains("finalizer"));
        assert_eq!(refused, is_refused, "{answer:?}");
        let create = kubernetes::CreateOptions {
            cluster: Some("fleet/east".into()),
            owned: true,
            substitutions: vec![],
        };
        let answer = poll_once(kubernetes::Host::create(&mut *call, object(), create));
        let refused = matches!(&answer, Some(Err(Error::Invalid(why))) if why.contains("finalizer"));
        assert_eq!(refused, is_refused, "{answer:?}");
    }
}

/// A grant for the kind Secret does not include reading values of Secrets, which needs `readSecrets`.
#[tokio::test]
async fn secrets_are_denied_for_every_verb_that_reads_values() {
    let cluster = SilentCluster::new();
    let gvk = types::Gvk {
        group: String::new(),
        version: "v1".into(),
        kind: "Secret".into(),
    };
    let secret = || types::ObjectRef {
        gvk: gvk.clone(),
        cluster: None,
        namespace: Some("a".into()),
        name: "s".into(),
    };
    let body = || br#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"a"}}"#.to_vec();
    let mut call = cluster.call(all_permissions(), &all_permissions());
    for (live, projection) in [
        (false, kubernetes::Projection::Full),
        (true, kubernetes::Projection::Full),
        (false, kubernetes::Projection::Fields(vec!["data".into()])),
    ] {
        let options = kubernetes::GetOptions { live, projection };
        let answer = poll_once(kubernetes::Host::get(&mut *call, secret(), options));
        assert!(matches!(answer, Some(Err(Error::Denied(_)))), "{answer:?}");
    }
    for live in [false, true] {
        let options = kubernetes::ListOptions {
            cluster: None,
            namespace: Some("a".into()),
            label_selector: None,
            field_selector: Some("data.password=aHVudGVy".into()),
            projection: kubernetes::Projection::Metadata,
            limit: None,
            continue_token: None,
            live,
        };
        let answer = poll_once(kubernetes::Host::list(&mut *call, gvk.clone(), options));
        assert!(matches!(answer, Some(Err(Error::Denied(_)))), "{answer:?}");
    }
    let answer = poll_once(kubernetes::Host::require_ready(&mut *call, secret()));
    assert!(matches!(answer, Some(Err(Error::Denied(_)))), "{answer:?}");
    let status = types::ConditionStatus::False;
    let answer = poll_once(kubernetes::Host::require_condition(
        &mut *call,
        secret(),
        "X".into(),
        status,
    ));
    assert!(matches!(answer, Some(Err(Error::Denied(_)))), "{answer:?}");
    let patch = kubernetes::Host::patch(&mut *call, secret(), b"{}".to_vec(), no_preconditions());
    let answer = poll_once(patch);
    assert!(matches!(answer, Some(Err(Error::Denied(_)))), "{answer:?}");
    // Their responses have no values.
    let answer = poll_once(kubernetes::Host::apply(
        &mut *call,
        body(),
        apply_options(None, vec![]),
    ));
    assert!(answer.is_none(), "{answer:?}");
    let options = kubernetes::CreateOptions {
        cluster: None,
        owned: false,
        substitutions: vec![],
    };
    let answer = poll_once(kubernetes::Host::create(&mut *call, body(), options));
    assert!(answer.is_none(), "{answer:?}");
    let options = kubernetes::GetOptions {
        live: false,
        projection: kubernetes::Projection::Metadata,
    };
    let answer = poll_once(kubernetes::Host::get(&mut *call, secret(), options));
    assert!(answer.is_none(), "{answer:?}");
}

/// A change while the response is on its way must wake the object.
#[tokio::test]
async fn written_object_is_a_dependency_before_its_request_is_sent() {
    let sent = Arc::new(tokio::sync::Notify::new());
    let received = sent.clone();
    let service = tower::service_fn(move |request: ::http::Request<kube::client::Body>| {
        let received = received.clone();
        async move {
            if request.uri().path() != "/api/v1" {
                if *request.method() != "GET" {
                    received.notify_one();
                }
                std::future::pending::<()>().await;
            }
            let kinds = r#"{"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": true}]}"#;
            Ok::<_, std::io::Error>(::http::Response::new(axum::body::Body::from(kinds)))
        }
    });
    let client = kube::Client::new(service, "default");
    let delete_options = kubernetes::DeleteOptions {
        propagation: kubernetes::Propagation::Background,
        preconditions: no_preconditions(),
    };
    let create_options = kubernetes::CreateOptions {
        cluster: None,
        owned: false,
        substitutions: vec![],
    };
    let written = ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "a", "b");
    for deletes in [true, false] {
        let services = build_services(client.clone());
        let mut call = build_call(&services, all_permissions(), &all_permissions());
        let by = call.context.target.as_ref().expect("a target").key.clone();
        let request = async {
            if deletes {
                kubernetes::Host::delete(&mut *call, config_map(), delete_options.clone()).await
            } else {
                let created = kubernetes::Host::create(&mut *call, object(), create_options.clone());
                created.await.map(drop)
            }
        };
        tokio::select! {
            ended = request => panic!("no response: {ended:?}"),
            () = sent.notified() => {}
        }
        let reads = services.dispatcher.reads(&by);
        let expected = ReadDependency::Object(written.clone(), Projection::Full);
        assert!(reads.contains(&expected), "deletes: {deletes}: {reads:?}");
    }
}
