//! Durations of reconciles, and a server from which the driver reads them.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::{Json, Router, extract::State, routing};
use futures::{Stream, channel::mpsc};
use serde_json::{Value, json};

/// Durations since the last reset, in microseconds.
#[derive(Default)]
pub struct DurationMeter(Mutex<Vec<u64>>);

/// A reconcile being timed; it ends when this is dropped.
pub struct Timed<'a>(&'a DurationMeter, Instant);

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let took = u64::try_from(self.1.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.0.lock().expect("lock").push(took);
    }
}

impl DurationMeter {
    /// Starts the timer of a reconcile.
    pub fn start(&self) -> Timed<'_> {
        Timed(self, Instant::now())
    }

    fn stats(&self) -> Value {
        let mut sorted = self.0.lock().expect("lock").clone();
        sorted.sort_unstable();
        let at = |q: usize| sorted.get(sorted.len() * q / 100);
        json!({"reconciles": sorted.len(), "p50_us": at(50), "p99_us": at(99)})
    }

    /// Serves on a free port, whose address it writes to a file. Returns the driver's requests to reconcile all objects.
    pub async fn serve(ready_file: &Path) -> anyhow::Result<(Arc<Self>, impl Stream<Item = ()> + use<>)> {
        let meter = Arc::new(Self::default());
        let (sender, again) = mpsc::unbounded();
        let routes = Router::new()
            .route(
                "/count",
                routing::get(async |State(meter): State<Arc<Self>>| {
                    Json(meter.0.lock().expect("lock").len())
                }),
            )
            .route(
                "/stats",
                routing::get(async |State(meter): State<Arc<Self>>| Json(meter.stats())),
            )
            .route(
                "/reset",
                routing::post(async |State(meter): State<Arc<Self>>| meter.0.lock().expect("lock").clear()),
            )
            .route(
                "/resync",
                routing::post(async move || {
                    // Fails when the controller has ended, which the driver notices by itself.
                    let _ = sender.unbounded_send(());
                }),
            )
            .with_state(meter.clone());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let facts = json!({"admin": format!("http://{}", listener.local_addr()?)});
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let partial = ready_file.with_extension("partial");
        std::fs::write(&partial, facts.to_string())?;
        std::fs::rename(partial, ready_file)?;
        Ok((meter, again))
    }
}
