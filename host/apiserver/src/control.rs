//! Fault injection and counters over HTTP (`/_ostler/`), for tests in another process.

use std::time::Duration;

use serde_json::{Value, json};

use crate::faults::RequestFault;
use crate::state::ServerState;
use crate::status::StatusError;

/// Answers `METHOD /_ostler/…`.
///
/// - `POST faults` arms a [`RequestFault`], `DELETE faults` disarms all;
/// - `POST latency {"ms": N}`, `POST cut-watches`, `POST compact`, `POST restart`;
/// - `POST refuse {"ms": N}` refuses connections for this time;
/// - `GET counters`, `DELETE counters`.
pub fn handle_control(
    state: &std::sync::Arc<ServerState>,
    method: &http::Method,
    path: &str,
    body: &[u8],
) -> Result<Value, StatusError> {
    let body: Value = match body {
        [] => Value::Null,
        text => serde_json::from_slice(text).map_err(|error| StatusError::bad_request(error.to_string()))?,
    };
    let duration = || {
        body["ms"]
            .as_u64()
            .map(Duration::from_millis)
            .ok_or_else(|| StatusError::bad_request("ms: a number is needed"))
    };
    match (method.as_str(), path) {
        ("POST", "faults") => {
            let fault: RequestFault =
                serde_json::from_value(body).map_err(|error| StatusError::bad_request(error.to_string()))?;
            state
                .faults
                .add(fault)
                .map_err(|error| StatusError::bad_request(error.to_string()))?;
        }
        ("DELETE", "faults") => state.faults.clear(),
        ("POST", "latency") => state.faults.set_latency(duration()?),
        ("POST", "cut-watches") => state.faults.cut_watches(),
        ("POST", "compact") => state.api.storage.compact(),
        ("POST", "restart") => state.faults.restart(),
        ("POST", "refuse") => {
            let duration = duration()?;
            state.faults.refuse_connections(true);
            let state = state.clone();
            tokio::spawn(async move {
                tokio::time::sleep(duration).await;
                state.faults.refuse_connections(false);
            });
        }
        ("GET", "counters") => {
            let counters = &state.counters;
            return Ok(
                json!({"requests": counters.all(), "writes": counters.writes(), "recentWrites": counters.recent_writes()}),
            );
        }
        ("DELETE", "counters") => state.counters.reset(),
        _ => return Err(StatusError::no_such_path()),
    }
    Ok(json!({}))
}
