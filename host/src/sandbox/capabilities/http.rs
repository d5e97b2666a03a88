//! `http`: requests to named upstreams, with credentials the component never sees.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use tracing::{Span, field::Empty, instrument};

mod events;

use super::{
    PluginCall,
    context::{check_host_reference, check_path_segments},
    freshness::is_unrepeatable,
    protection::{ConnectionUsage, UsedConnection},
};
use crate::{
    cache::store::Store,
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
        secret_view::is_digest_key,
        well_known::annotation,
    },
    observe::metrics::HostCall,
    policy::grants::{Access, SecretDestination},
    sandbox::services::Services,
    upstream::{self, ResponseBudget, ResponseCharge, SendError, UpstreamObject, UpstreamSecretKey},
};

/// Maximum number of requests of one `send-all`, which are sent concurrently.
const MAX_CONCURRENT_REQUESTS: usize = 64;

impl Host for PluginCall {
    #[instrument(
        name = "http.send",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn send(&mut self, request: Request) -> Result<Response, Error> {
        let prepared = self.prepare_request(request).await?;
        let response = Box::pin(send_prepared(prepared, &self.response_budget())).await;
        self.return_response(response)
    }

    #[instrument(name = "http.send-all", target = "spans", level = "trace", skip_all, fields(requests = requests.len()))]
    async fn send_all(&mut self, requests: Vec<Request>) -> Vec<Result<Response, Error>> {
        let count = requests.len();
        if count > MAX_CONCURRENT_REQUESTS {
            if let Some(metrics) = &self.context.metrics {
                metrics.record_exceeded(Limit::HostCalls);
            }
            let why = format!("send-all of {count} requests: {MAX_CONCURRENT_REQUESTS} at most");
            return vec![Err(Error::LimitExceeded(why)); count];
        }
        // Checks and reads change the call, so they come one after the other; then the requests are sent concurrently.
        let mut prepared = Vec::with_capacity(requests.len());
        for request in requests {
            prepared.push(self.prepare_request(request).await);
        }
        let budget = self.response_budget();
        let sending = prepared.into_iter().enumerate();
        let mut sending: FuturesUnordered<_> = sending
            .map(|(i, prepared)| {
                let budget = &budget;
                async move {
                    let sent = match prepared {
                        Ok(prepared) => Box::pin(send_prepared(prepared, budget)).await,
                        Err(e) => Err(PreparedError::Refused(e)),
                    };
                    (i, sent)
                }
            })
            .collect();
        let mut responses: Vec<_> = std::iter::repeat_with(|| None).take(count).collect();
        while let Some((i, sent)) = sending.next().await {
            responses[i] = Some(sent);
            // The requests that are still running are dropped: their responses could not be returned.
            if budget.is_exceeded() {
                break;
            }
        }
        drop(sending);
        let cancelled = || Err(PreparedError::from(SendError::ResponsesTooLarge));
        responses
            .into_iter()
            .map(|sent| self.return_response(sent.unwrap_or_else(cancelled)))
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
        let (_, services) = self.begin_host_call(HostCall::HttpSecretDigest)?;
        let object = self.load_secret(&services, &secret, None).await?;
        let value = services
            .cache
            .store
            .get(&object, Projection::Full)
            .and_then(|object| object.data_value(&secret.key));
        let Some(value) = value else { return Ok(None) };
        let secret = UpstreamSecretKey {
            namespace: object.namespace.to_string(),
            name: object.name.to_string(),
            key: secret.key,
        };
        let clients = &services.upstreams.clients;
        Ok(Some(clients.digest_secret(&secret, &value).await?))
    }

    #[instrument(
        name = "http.subscribe",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn subscribe(&mut self, subscription: Subscription) -> Result<(), Error> {
        self.subscribe_stream(subscription).await
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

/// An upstream that the component may use, with its Secrets in the store.
pub(super) struct ResolvedUpstream {
    pub(super) services: Arc<Services>,
    pub(super) key: ObjectRef,
    pub(super) object: UpstreamObject,
}

/// A request that has passed all checks.
struct PreparedRequest {
    upstream: ResolvedUpstream,
    request: upstream::UpstreamRequest,
}

/// A response, with its charge to the memory of the call.
struct ChargedResponse {
    response: Response,
    charge: ResponseCharge,
}

/// The reason for a missing response.
enum PreparedError {
    /// The request was refused before it was sent.
    Refused(Error),
    /// The request has failed.
    Failed(SendError),
}

impl From<SendError> for PreparedError {
    fn from(e: SendError) -> Self {
        Self::Failed(e)
    }
}

/// Sends a request. It has a span of its own, since the requests of a `send-all` are sent concurrently.
#[instrument(name = "http.request", target = "spans", level = "trace", skip_all, fields(upstream = %prepared.upstream.key, method = prepared.request.method, http.response.status_code = Empty))]
async fn send_prepared(
    prepared: PreparedRequest,
    budget: &ResponseBudget,
) -> Result<ChargedResponse, PreparedError> {
    let PreparedRequest {
        upstream,
        mut request,
    } = prepared;
    request.budget = Some(budget.clone());
    let ResolvedUpstream {
        services,
        key,
        object,
    } = upstream;
    let started = Instant::now();
    let secrets = StoreSecrets(&services.cache.store);
    let sent = services
        .upstreams
        .clients
        .send_request(&object, request, &secrets)
        .await;
    let code = match &sent {
        Ok(response) => response.status,
        Err(SendError::LoginFailed(_)) => 401,
        Err(_) => 0,
    };
    Span::current().record("http.response.status_code", code);
    services
        .metrics
        .record_upstream(&key.namespace, &key.name, code, started.elapsed());
    let response: Response = match sent {
        Ok(response) => response.into(),
        // A failed login is HTTP 401, as from the upstream itself, with the reason in the body.
        Err(SendError::LoginFailed(why)) => upstream::UpstreamResponse::unauthorized(&why).into(),
        Err(e) => return Err(e.at_server(&object).into()),
    };
    let headers = response.headers.iter().map(|h| h.name.len() + h.value.len());
    let mut charge = ResponseCharge::new(budget.clone());
    charge.add(headers.sum::<usize>() + response.body.len()).await?;
    Ok(ChargedResponse { response, charge })
}

impl PluginCall {
    /// Finds the upstream of a request, checks that the component may use it, and loads the Secrets of its credentials.
    async fn resolve_upstream(
        &mut self,
        call: HostCall,
        upstream: &UpstreamRef,
        method: &str,
        path: &str,
    ) -> Result<ResolvedUpstream, Error> {
        let (key, services) = self.locate_upstream(call, upstream)?;
        self.context.check_grant(&Access::Upstream {
            namespace: &key.namespace,
            name: &key.name,
            method,
            path,
        })?;
        self.load_upstream(services, key).await
    }

    /// Begins a host call, and returns the key of the Upstream that a reference names.
    pub(super) fn locate_upstream(
        &mut self,
        call: HostCall,
        upstream: &UpstreamRef,
    ) -> Result<(ObjectRef, Arc<Services>), Error> {
        let (_, services) = self.begin_host_call(call)?;
        check_host_reference("an Upstream", upstream.cluster.as_deref())?;
        let namespace = upstream
            .namespace
            .as_deref()
            .unwrap_or(self.context.host_namespace());
        check_path_segments(namespace, &upstream.name, "upstream")?;
        let key = ObjectRef::new(upstream::upstream_gvk(), namespace, &upstream.name);
        Ok((key, services))
    }

    /// Loads an Upstream that is granted, and the Secrets of its credentials, as dependencies.
    pub(super) async fn load_upstream(
        &mut self,
        services: Arc<Services>,
        key: ObjectRef,
    ) -> Result<ResolvedUpstream, Error> {
        let own = self.context.host_namespace().to_owned();
        let (namespace, name) = (&key.namespace, &key.name);
        let Some(object) = self.get_cached(&services, &key, Projection::Full).await? else {
            return Err(Error::NotFound(format!(
                "Upstream {namespace}/{name} does not exist"
            )));
        };
        let upstream = UpstreamObject::from_object(&object).map_err(Error::Invalid)?;
        if !upstream.allows_namespace(&own) {
            return Err(Error::Denied(format!(
                "Upstream {namespace}/{name} may not be used from namespace {own}: its spec.allowedNamespaces doesn't list it"
            )));
        }
        for secret in upstream.secret_names() {
            let secret = ObjectRef::new(Gvk::secret(), namespace, &secret);
            self.get_cached(&services, &secret, Projection::Full).await?;
        }
        Ok(ResolvedUpstream {
            services,
            key,
            object: upstream,
        })
    }

    /// Checks a request and finds its upstream. All Secrets of its credentials and its body are in the store then.
    async fn prepare_request(&mut self, request: Request) -> Result<PreparedRequest, Error> {
        for secret in request.substitutions.iter().flat_map(named_secrets) {
            self.context.check_secret(secret, None)?;
        }
        let method = method_name(request.method);
        let upstream = self
            .resolve_upstream(
                HostCall::HttpSend,
                &request.upstream,
                method,
                &request.path_and_query,
            )
            .await?;
        self.charge_bytes_to_host(count_bytes(&request))?;
        let services = &upstream.services;
        let substitutions = if request.substitutions.is_empty() {
            Vec::new()
        } else {
            let origin = upstream.object.origin().map_err(Error::Invalid)?;
            self.load_substitutions(
                services,
                request.substitutions,
                SecretDestination::Origin(&origin),
            )
            .await?
        };
        let reads = matches!(request.method, Method::Get | Method::Head | Method::Options);
        let usage = if reads {
            ConnectionUsage::Reads
        } else {
            ConnectionUsage::Changes
        };
        self.record_use(&UsedConnection::upstream(&upstream.key, &upstream.object), usage)
            .await?;
        if is_unrepeatable(request.method) {
            self.ensure_fresh_object().await?;
        }
        self.effects.record_request(reads);
        let request = upstream::UpstreamRequest {
            method: method.to_owned(),
            path_and_query: request.path_and_query,
            headers: request.headers.into_iter().map(|h| (h.name, h.value)).collect(),
            body: request.body,
            substitutions,
            timeout: request.timeout.filter(|ms| *ms > 0).map(Duration::from_millis),
            budget: None,
        };
        Ok(PreparedRequest { upstream, request })
    }

    /// The budget of the responses to a host call: what is left of `bytesFromHost`.
    fn response_budget(&self) -> ResponseBudget {
        let left = self
            .limits()
            .bytes_from_host
            .saturating_sub(self.budget.bytes().from_host);
        ResponseBudget::new(left, self.memory.clone())
    }

    /// Charges a response and returns it. Its bytes count as memory of the call until the next host call.
    fn return_response(&mut self, sent: Result<ChargedResponse, PreparedError>) -> Result<Response, Error> {
        let ChargedResponse { response, charge } = match sent {
            Ok(charged) => charged,
            Err(PreparedError::Failed(SendError::ResponsesTooLarge)) => {
                let resource = "bytes given by the host in one reconcile";
                return Err(self.limit_exceeded(Limit::BytesFromHost, resource));
            }
            Err(PreparedError::Failed(e)) => return Err(e.into()),
            Err(PreparedError::Refused(e)) => return Err(e),
        };
        let bytes = charge.hand_over();
        self.response_bytes += bytes;
        self.charge_bytes_from_host(bytes)?;
        Ok(response)
    }

    /// Loads the Secrets of substitutions that are granted for their destination, as dependencies.
    pub(super) async fn load_substitutions(
        &mut self,
        services: &Services,
        substitutions: Vec<Substitution>,
        destination: SecretDestination<'_>,
    ) -> Result<Vec<upstream::Substitution>, Error> {
        let mut loaded = Vec::with_capacity(substitutions.len());
        for substitution in substitutions {
            let source = match substitution.source {
                SecretSource::Key(secret) => {
                    upstream::SecretSource::Key(self.load_secret_key(services, secret, destination).await?)
                }
                SecretSource::Basic(credentials) => upstream::SecretSource::Basic {
                    username: match credentials.username {
                        Username::Literal(name) => upstream::Username::Literal(name),
                        Username::Secret(secret) => upstream::Username::Secret(
                            self.load_secret_key(services, secret, destination).await?,
                        ),
                    },
                    password: self
                        .load_secret_key(services, credentials.password, destination)
                        .await?,
                },
            };
            loaded.push(upstream::Substitution {
                placeholder: substitution.placeholder,
                source,
                encoding: substitution.encoding.into(),
            });
        }
        Ok(loaded)
    }

    /// Loads a Secret that the component may name (but never read) into the store, as a dependency.
    async fn load_secret(
        &mut self,
        services: &Services,
        secret: &SecretKeyRef,
        destination: Option<SecretDestination<'_>>,
    ) -> Result<ObjectRef, Error> {
        let key = self.context.check_secret(secret, destination)?;
        self.get_cached(services, &key, Projection::Full).await?;
        Ok(key)
    }

    /// Loads the Secret of a substitution as [`Self::load_secret`] does.
    async fn load_secret_key(
        &mut self,
        services: &Services,
        secret: SecretKeyRef,
        destination: SecretDestination<'_>,
    ) -> Result<UpstreamSecretKey, Error> {
        let object = self.load_secret(services, &secret, Some(destination)).await?;
        Ok(UpstreamSecretKey {
            namespace: object.namespace.to_string(),
            name: secret.name,
            key: secret.key,
        })
    }
}

/// Denies a plugin the Secret with the key of digests, whatever is granted.
pub(super) fn deny_digest_key(gvk: &Gvk, name: &str) -> Result<(), Error> {
    if is_digest_key(gvk, name) {
        let why = format!("the Secret {name} has the host's key of digests, which no grant covers");
        return Err(Error::Denied(why));
    }
    Ok(())
}

/// Returns the secrets that a substitution names.
pub(super) fn named_secrets(substitution: &Substitution) -> Vec<&SecretKeyRef> {
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

/// Counts the bytes of a request.
fn count_bytes(request: &Request) -> usize {
    let headers = request.headers.iter().map(|h| h.name.len() + h.value.len());
    let body = request.body.as_ref().map_or(0, Vec::len);
    request.path_and_query.len() + headers.sum::<usize>() + body
}

/// Reads the values of Secrets from the shared cache when a request is sent.
pub(crate) struct StoreSecrets<'a>(pub &'a Store);

impl upstream::SecretStore for StoreSecrets<'_> {
    fn get(&self, secret: &UpstreamSecretKey) -> Option<upstream::Secret> {
        // An Upstream may name any Secret of its namespace.
        if is_digest_key(&Gvk::secret(), &secret.name) {
            return None;
        }
        let key = ObjectRef::new(Gvk::secret(), &secret.namespace, &secret.name);
        let object = self.0.get(&key, Projection::Full)?;
        object.data_value(&secret.key).map(upstream::Secret::new)
    }

    fn allowed_origins(&self, secret: &UpstreamSecretKey) -> Option<String> {
        let key = ObjectRef::new(Gvk::secret(), &secret.namespace, &secret.name);
        let object = self.0.get(&key, Projection::Full)?;
        object.annotation(annotation::ORIGINS).map(str::to_owned)
    }
}
