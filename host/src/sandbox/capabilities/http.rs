//! `http`: requests to named upstreams, with credentials the component never sees.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use tracing::{Span, field::Empty, instrument};

mod events;

use super::{Call, Services, segment};
use crate::{
    contract::{
        bindings::{
            http::{EventQuery, EventTail, Host, Method, Request, Response, Subscription},
            types::{Error, SecretKeyRef, SecretSource, Substitution, UpstreamRef, Username},
        },
        limits::Limit,
    },
    kube::{
        key::{Gvk, ObjectRef},
        scope::Projection,
    },
    observe::metrics::HostCall,
    policy::grants::Access,
    upstream::{self, SecretKey, UpstreamObject},
};

/// Requests sent side by side at most.
const REQUESTS: usize = 64;

impl Host for Call {
    #[instrument(
        name = "http.send",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn send(&mut self, request: Request) -> Result<Response, Error> {
        let answer = deliver(self.prepare(request).await?).await?;
        self.answer(answer)
    }

    #[instrument(name = "http.send-all", target = "spans", level = "trace", skip_all, fields(requests = requests.len()))]
    async fn send_all(&mut self, requests: Vec<Request>) -> Vec<Result<Response, Error>> {
        let count = requests.len();
        if count > REQUESTS {
            if let Some(metrics) = &self.metrics {
                metrics.exceeded(Limit::HostCalls);
            }
            let why = format!("send-all of {count} requests: {REQUESTS} at most");
            return vec![Err(Error::LimitExceeded(why)); count];
        }
        // Everything that needs the call itself first; then side by side.
        let mut prepared = Vec::with_capacity(requests.len());
        for request in requests {
            prepared.push(self.prepare(request).await);
        }
        let sending = prepared
            .into_iter()
            .map(|prepared| async move { deliver(prepared?).await });
        let answers = join_all(sending).await;
        answers
            .into_iter()
            .map(|a| a.and_then(|a| self.answer(a)))
            .collect()
    }

    #[instrument(
        name = "http.secret-digest",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn secret_digest(&mut self, secret: SecretKeyRef) -> Result<Option<String>, Error> {
        let (_, services) = self.enter(HostCall::HttpSecretDigest)?;
        let object = self.secret(&services, &secret).await?;
        let value = services
            .store
            .get(&object, Projection::Full)
            .and_then(|object| object.data_value(&secret.key));
        Ok(value.map(|value| services.upstreams.keyed_digest(&value)))
    }

    #[instrument(
        name = "http.subscribe",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn subscribe(&mut self, subscription: Subscription) -> Result<(), Error> {
        self.follow(subscription).await
    }

    #[instrument(
        name = "http.read-events",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn read_events(&mut self, query: EventQuery) -> Result<EventTail, Error> {
        self.read_tail(query).await
    }
}

/// A request that may be sent.
type Prepared = (Arc<Services>, ObjectRef, UpstreamObject, upstream::Request);

/// Each has a span of its own, as several may be on their way at once.
#[instrument(name = "http.request", target = "spans", level = "trace", skip_all, fields(upstream = %key, method = request.method, http.response.status_code = Empty))]
async fn deliver((services, key, upstream, request): Prepared) -> Result<Response, Error> {
    let started = Instant::now();
    let sent = services
        .upstreams
        .send_request(&upstream, request, &Secrets(&services))
        .await;
    let code = match &sent {
        Ok(response) => response.status,
        Err(upstream::SendError::LoginFailed(_)) => 401,
        Err(_) => 0,
    };
    Span::current().record("http.response.status_code", code);
    services
        .metrics
        .upstream(&key.namespace, &key.name, code, started.elapsed());
    match sent {
        Ok(response) => Ok(response.into()),
        // What the upstream would have said, had it been asked without credentials; and why.
        Err(upstream::SendError::LoginFailed(why)) => Ok(upstream::Response::unauthorized(&why).into()),
        Err(e) => Err(e.into()),
    }
}

impl Call {
    /// The upstream a component names, if it may ask it this, with everything its credentials need in the store.
    async fn upstream(
        &mut self,
        call: HostCall,
        upstream: &UpstreamRef,
        method: &str,
        path: &str,
    ) -> Result<(Arc<Services>, ObjectRef, UpstreamObject), Error> {
        let (subject, services) = self.enter(call)?;
        let own = subject.key.namespace.clone();
        super::check_cluster(upstream.cluster.as_deref())?;
        let namespace: Arc<str> = upstream
            .namespace
            .as_deref()
            .map_or_else(|| own.clone(), Into::into);
        for (field, value) in [("namespace", &*namespace), ("name", &upstream.name)] {
            if value.is_empty() || !segment(value) {
                return Err(Error::Invalid(format!(
                    "{field} `{value}` of the upstream is not a name"
                )));
            }
        }
        let key = ObjectRef::new(upstream::upstream_gvk(), &namespace, &upstream.name);
        self.allow(&Access::Upstream {
            namespace: &namespace,
            name: &upstream.name,
            method,
            path,
        })?;
        let Some(object) = self.cached(&services, &key, Projection::Full).await? else {
            return Err(Error::NotFound(format!(
                "Upstream {namespace}/{} does not exist",
                key.name
            )));
        };
        let upstream = UpstreamObject::from_object(&object).map_err(Error::Invalid)?;
        if !upstream.allows_namespace(&own) {
            return Err(Error::Denied(format!(
                "Upstream {namespace}/{} may not be used from namespace {own}: its spec.allowedNamespaces doesn't list it",
                key.name
            )));
        }
        for name in upstream.secret_names() {
            let secret = ObjectRef::new(Gvk::new("", "v1", "Secret"), &namespace, &name);
            self.cached(&services, &secret, Projection::Full).await?;
        }
        Ok((services, key, upstream))
    }

    /// Checks a request and finds its upstream, with everything its credentials and body need in the store.
    async fn prepare(&mut self, request: Request) -> Result<Prepared, Error> {
        for secret in request.substitutions.iter().flat_map(named_secrets) {
            self.may_name(secret)?;
        }
        let method = method_name(request.method);
        let (services, key, upstream) = self
            .upstream(
                HostCall::HttpSend,
                &request.upstream,
                method,
                &request.path_and_query,
            )
            .await?;
        self.takes(weight(&request))?;
        let mut substitutions = Vec::new();
        for substitution in request.substitutions {
            let source = match substitution.source {
                SecretSource::Key(secret) => {
                    upstream::SecretSource::Key(self.secret_key(&services, secret).await?)
                }
                SecretSource::Basic(credentials) => upstream::SecretSource::Basic {
                    username: match credentials.username {
                        Username::Literal(name) => upstream::Username::Literal(name),
                        Username::Secret(secret) => {
                            upstream::Username::Secret(self.secret_key(&services, secret).await?)
                        }
                    },
                    password: self.secret_key(&services, credentials.password).await?,
                },
            };
            substitutions.push(upstream::Substitution {
                placeholder: substitution.placeholder,
                source,
                encoding: substitution.encoding.into(),
            });
        }
        let reads = matches!(request.method, Method::Get | Method::Head | Method::Options);
        self.counts.upstream_reads += u64::from(reads);
        self.counts.upstream_writes += u64::from(!reads);
        let request = upstream::Request {
            method: method.to_owned(),
            path_and_query: request.path_and_query,
            headers: request.headers.into_iter().map(|h| (h.name, h.value)).collect(),
            body: request.body,
            substitutions,
            timeout: request.timeout.filter(|ms| *ms > 0).map(Duration::from_millis),
        };
        Ok((services, key, upstream, request))
    }

    /// An answer, counted.
    fn answer(&mut self, answer: Response) -> Result<Response, Error> {
        let headers = answer.headers.iter().map(|h| h.name.len() + h.value.len());
        self.gives(headers.sum::<usize>() + answer.body.len())?;
        Ok(answer)
    }

    /// Returns the Secret of a reference, if the component may name it.
    fn may_name(&self, secret: &SecretKeyRef) -> Result<ObjectRef, Error> {
        super::check_cluster(secret.cluster.as_deref())?;
        let (namespace, name) = (secret.namespace.as_deref(), secret.name.as_str());
        let own = self
            .subject()
            .map(|key| key.namespace.clone())
            .unwrap_or_default();
        let namespace = namespace.unwrap_or(&own);
        for (field, value) in [("namespace", namespace), ("name", name)] {
            if value.is_empty() || !segment(value) {
                return Err(Error::Invalid(format!(
                    "{field} `{value}` of the secret is not a name"
                )));
            }
        }
        self.allow(&Access::Secret { namespace, name })?;
        Ok(ObjectRef::new(Gvk::new("", "v1", "Secret"), namespace, name))
    }

    /// Loads a Secret that the component may name (but never read) into the store, as a dependency.
    async fn secret(&mut self, services: &Services, secret: &SecretKeyRef) -> Result<ObjectRef, Error> {
        let key = self.may_name(secret)?;
        self.cached(services, &key, Projection::Full).await?;
        Ok(key)
    }

    /// As [`Self::secret`], for a substitution.
    async fn secret_key(&mut self, services: &Services, secret: SecretKeyRef) -> Result<SecretKey, Error> {
        let object = self.secret(services, &secret).await?;
        Ok(SecretKey {
            namespace: object.namespace.to_string(),
            name: secret.name,
            key: secret.key,
        })
    }
}

/// Returns the secrets that a substitution names.
fn named_secrets(substitution: &Substitution) -> Vec<&SecretKeyRef> {
    match &substitution.source {
        SecretSource::Key(secret) => vec![secret],
        SecretSource::Basic(credentials) => match &credentials.username {
            Username::Literal(_) => vec![&credentials.password],
            Username::Secret(username) => vec![username, &credentials.password],
        },
    }
}

/// Returns a method as grants name it and as it is sent.
fn method_name(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Options => "OPTIONS",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
    }
}

/// Bytes a component hands over with a request.
fn weight(request: &Request) -> usize {
    let headers = request.headers.iter().map(|h| h.name.len() + h.value.len());
    let body = request.body.as_ref().map_or(0, Vec::len);
    request.path_and_query.len() + headers.sum::<usize>() + body
}

/// Secrets as the store has them now.
pub(crate) struct Secrets<'a>(pub &'a Services);

impl upstream::SecretStore for Secrets<'_> {
    fn get(&self, secret: &SecretKey) -> Option<upstream::Secret> {
        let key = ObjectRef::new(Gvk::new("", "v1", "Secret"), &secret.namespace, &secret.name);
        let object = self.0.store.get(&key, Projection::Full)?;
        object.data_value(&secret.key).map(upstream::Secret::new)
    }
}
