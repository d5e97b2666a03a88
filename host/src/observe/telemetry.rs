//! Logs and traces.
//!
//! Logs go to stderr, through queues that drop lines if it does not accept them ([`log_queue`]). Traces go over OTLP when `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`
//! is set: a span per reconcile, and in it one per host call of the component. They carry names and outcomes, never
//! content that was read or written. Their target is [`SPANS`] and their level TRACE: without an exporter the filter
//! disables them before any field is evaluated.

mod log_queue;
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

pub use self::log_queue::{DroppedLines, PLUGIN_TARGET};
use self::log_queue::{LogGuard, LogQueues};
use crate::kube::well_known::environment;

/// Target of the spans that are exported as traces.
pub const SPANS: &str = "spans";

/// OpenTelemetry's environment variables that turn traces on.
const ENDPOINT_VARIABLES: [&str; 2] = [
    environment::OTEL_EXPORTER_OTLP_ENDPOINT,
    environment::OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
];

/// Log filter without `$OSTLER_LOG`.
// kube_client is off because the host logs the errors that it returns.
const DEFAULT_FILTER: &str = "info,wasmtime=warn,opentelemetry=warn,notify=warn,kube_client=off";

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Aligned text, coloured on a terminal.
    Pretty,
    /// One JSON object per line.
    Json,
}

/// Id of a reconcile in log lines and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileId(u32);

impl ReconcileId {
    /// Creates an id that no recent reconcile had.
    pub fn next() -> Self {
        // A different start in each process, so that ids of two processes in one log differ.
        static NEXT: LazyLock<AtomicU32> =
            LazyLock::new(|| AtomicU32::new(crate::kube::time::unique_id() as u32));
        // An odd multiplier permutes the numbers: none repeats before all have been used, and neighbours look different.
        Self(NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B1))
    }
}

impl fmt::Display for ReconcileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Guard of logs and traces. The last lines are written and the last traces are sent when it is dropped.
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    /// Dropped after the traces.
    _log: LogGuard,
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

/// Starts logging, and traces if the environment asks for them. `$OSTLER_LOG` is a filter like `RUST_LOG`.
pub fn start_telemetry(format: LogFormat, runtime: &Handle) -> anyhow::Result<Telemetry> {
    let filter =
        EnvFilter::try_from_env(environment::OSTLER_LOG).unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    // At TRACE lapin logs whole frames, also the one with the password. Its errors are in the status of the Upstream.
    let filter = filter.add_directive("lapin=off".parse()?);
    let (queues, guard) = LogQueues::start(std::io::stderr);
    queues.publish_counters();
    let log = tracing_subscriber::fmt::layer().with_writer(queues);
    let log = match format {
        LogFormat::Pretty => log
            .with_ansi(pretty::use_colours())
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
    let traces = ENDPOINT_VARIABLES
        .iter()
        .any(|v| env::var_os(v).is_some_and(|v| !v.is_empty()))
        .then(|| build_exporter(runtime).context("traces over OTLP"))
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
    Ok(Telemetry { traces, _log: guard })
}

/// Builds the exporter, which sends batches in the background. Endpoint, headers, sampling and batching are configured
/// by OpenTelemetry's environment variables.
fn build_exporter(runtime: &Handle) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(Http {
            client: reqwest::Client::builder().build()?,
            runtime: runtime.clone(),
        })
        .build()?;
    let mut resource = Resource::builder();
    if env::var_os(environment::OTEL_SERVICE_NAME).is_none() {
        resource = resource.with_service_name("ostler");
    }
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(Terse(exporter))
        .with_resource(resource.build())
        .build())
}

/// Exporter that reduces errors to their kind: the message may contain content of an object or an upstream.
#[derive(Debug)]
struct Terse<E>(E);

impl<E: SpanExporter> SpanExporter for Terse<E> {
    fn export(&self, mut batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        for span in &mut batch {
            span.events = SpanEvents::default();
            if let Status::Error { description } = &span.status {
                span.status = Status::error(error_kind(description).to_owned());
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

/// The variant of a debug-formatted error: `NotReady` of `Error::NotReady(NotReady { … })`.
fn error_kind(error: &str) -> &str {
    let error = error.strip_prefix("Error::").unwrap_or(error);
    let end = error.find(|c: char| !c.is_ascii_alphanumeric());
    &error[..end.unwrap_or(error.len())]
}

/// HTTP client of the exporter. Its thread has no runtime, so requests run on the host's.
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
    fn spans_without_an_exporter_evaluate_no_field() {
        let looked = std::cell::Cell::new(0);
        let key = || {
            looked.set(looked.get() + 1);
            "Team/demo/a"
        };
        let span = || tracing::trace_span!(target: SPANS, "reconcile", object = key());
        let logs = tracing_subscriber::fmt::layer().with_filter(EnvFilter::new(DEFAULT_FILTER));
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
    fn error_kind_is_the_variant_alone() {
        assert_eq!(
            error_kind("Error::NotReady(NotReady { ref: secret })"),
            "NotReady"
        );
        assert_eq!(error_kind("Denied(\"x\")"), "Denied");
        assert_eq!(error_kind(""), "");
    }

    #[test]
    fn reconcile_ids_do_not_repeat() {
        let ids: HashSet<_> = (0..10_000).map(|_| ReconcileId::next().to_string()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.len() == 8));
    }
}
