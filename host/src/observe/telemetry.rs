//! Logs and traces.
//!
//! Logs go to stderr. Traces go over OTLP when `OTEL_EXPORTER_OTLP_ENDPOINT` (or its twin for traces) names a
//! receiver: a span per reconcile, and in it one per call of the component into the host. They carry names
//! and outcomes, never what was read or written. Their target is [`SPANS`] and their level TRACE: with nobody
//! listening the filter has them off before any field is looked at.

mod pretty;

use std::{
    env, fmt,
    future::Future,
    pin::Pin,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::Context;
use clap::ValueEnum;
use opentelemetry::trace::{Status, TracerProvider};
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::WithHttpConfig;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanEvents, SpanExporter},
};
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{EnvFilter, Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Target of the spans that are traces.
pub const SPANS: &str = "spans";

/// Variables that turn traces on: OpenTelemetry's own.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
];

/// What is logged unless `$OSTLER_LOG` says otherwise.
// The clients below tell by their errors what we log in words of our own.
const LEVELS: &str = "info,wasmtime=warn,opentelemetry=warn,notify=warn,kube_client=off";

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON object per line.
    Json,
}

/// Tells the log lines and the trace of one reconcile from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileId(u32);

impl ReconcileId {
    /// One that no other reconcile had lately.
    pub fn next() -> Self {
        // Somewhere else at each start, so that the logs of two don't meet.
        static NEXT: LazyLock<AtomicU32> =
            LazyLock::new(|| AtomicU32::new(crate::kube::time::unique_id() as u32));
        // An odd multiplier: every number once before any comes again, and neighbours look different.
        Self(NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B1))
    }
}

impl fmt::Display for ReconcileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Logs and traces, as long as this lives; what is left is sent when it is dropped.
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(traces) = &self.traces
            && let Err(e) = traces.shutdown()
        {
            eprintln!("ostler: the last traces were not sent: {e}");
        }
    }
}

/// Begins to log, and to trace where the environment says so. The level is `$OSTLER_LOG`, in the manner of
/// `RUST_LOG`.
pub fn start(format: LogFormat, runtime: &Handle) -> anyhow::Result<Telemetry> {
    let filter = EnvFilter::try_from_env("OSTLER_LOG").unwrap_or_else(|_| EnvFilter::new(LEVELS));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match format {
        LogFormat::Pretty => log
            .with_ansi(pretty::colours())
            .event_format(pretty::Pretty)
            .fmt_fields(pretty::Fields)
            .boxed(),
        LogFormat::Json => log
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
    };
    let traces = ENDPOINTS
        .iter()
        .any(|v| env::var_os(v).is_some_and(|v| !v.is_empty()))
        .then(|| exporter(runtime).context("traces over OTLP"))
        .transpose()?;
    let spans = traces.as_ref().map(|traces| {
        tracing_opentelemetry::layer()
            .with_tracer(traces.tracer("ostler"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_filter(Targets::new().with_target(SPANS, LevelFilter::TRACE))
    });
    tracing_subscriber::registry()
        .with(spans)
        .with(log.with_filter(filter))
        .init();
    Ok(Telemetry { traces })
}

/// Sends batches in the background. Where to, headers, sampling and batching are OpenTelemetry's variables.
fn exporter(runtime: &Handle) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(Http {
            client: reqwest::Client::builder().build()?,
            runtime: runtime.clone(),
        })
        .build()?;
    let mut resource = Resource::builder();
    if env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("ostler");
    }
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(Terse(exporter))
        .with_resource(resource.build())
        .build())
}

/// Lets go of an error only what kind it is: its words may be those of an object or an upstream.
#[derive(Debug)]
struct Terse<E>(E);

impl<E: SpanExporter> SpanExporter for Terse<E> {
    fn export(&self, mut batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        for span in &mut batch {
            span.events = SpanEvents::default();
            if let Status::Error { description } = &span.status {
                span.status = Status::error(kind(description).to_owned());
            }
        }
        self.0.export(batch)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.0.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// `NotReady` of `Error::NotReady(NotReady { … })`.
fn kind(error: &str) -> &str {
    let error = error.strip_prefix("Error::").unwrap_or(error);
    let end = error.find(|c: char| !c.is_ascii_alphanumeric());
    &error[..end.unwrap_or(error.len())]
}

/// The exporter has a thread of its own and no runtime on it: requests run on the host's.
#[derive(Debug)]
struct Http {
    client: reqwest::Client,
    runtime: Handle,
}

impl HttpClient for Http {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<http::Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let answer = client.execute(request.try_into()?).await?.error_for_status()?;
            let mut response = http::Response::builder().status(answer.status());
            if let Some(headers) = response.headers_mut() {
                *headers = answer.headers().clone();
            }
            Ok::<_, HttpError>(response.body(answer.bytes().await?)?)
        });
        Box::pin(async move { sent.await? })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn without_a_receiver_there_are_no_spans_and_no_field_is_looked_at() {
        let looked = std::cell::Cell::new(0);
        let key = || {
            looked.set(looked.get() + 1);
            "Team/demo/a"
        };
        let span = || tracing::trace_span!(target: SPANS, "reconcile", object = key());
        let logs = tracing_subscriber::fmt::layer().with_filter(EnvFilter::new(LEVELS));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(logs), || {
            assert!(span().is_disabled());
        });
        assert_eq!(looked.get(), 0);
        let traces =
            tracing_opentelemetry::layer().with_filter(Targets::new().with_target(SPANS, LevelFilter::TRACE));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(traces), || {
            assert!(!span().is_disabled());
        });
        assert_eq!(looked.get(), 1);
    }

    #[test]
    fn of_an_error_only_its_kind_is_traced() {
        assert_eq!(kind("Error::NotReady(NotReady { ref: secret })"), "NotReady");
        assert_eq!(kind("Denied(\"x\")"), "Denied");
        assert_eq!(kind(""), "");
    }

    #[test]
    fn ids_are_not_repeated() {
        let ids: HashSet<_> = (0..10_000).map(|_| ReconcileId::next().to_string()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.len() == 8));
    }
}
