//! The log of a container: its newest lines, by the subresource `log` of the pod.

use super::PluginCall;
use crate::{
    client::api::ApiError,
    contract::bindings::{kubernetes::LogOptions, types::Error},
    kube::key::ObjectRef,
    sandbox::{capabilities::protection::ConnectionUsage, services::Services},
};

/// Maximum number of lines of one read.
pub(super) const MAX_LOG_LINES: u32 = 1000;

/// Maximum size of the text of one read, in bytes.
const MAX_LOG_BYTES: usize = 64 << 10;

/// Factor by which a read asks for fewer lines if those of the one before exceed [`MAX_LOG_BYTES`]. The kubelet cuts the newest
/// lines off where it is given a limit of bytes, so that only fewer lines lead to them.
const FEWER_LINES: u32 = 8;

impl PluginCall {
    /// Reads the newest lines of a container's log from the API server. It is no dependency: a log wakes nobody.
    pub(super) async fn read_log_tail(
        &mut self,
        services: &Services,
        key: &ObjectRef,
        options: &LogOptions,
    ) -> Result<String, Error> {
        let access = self
            .access_cluster(services, &key.cluster, ConnectionUsage::Reads)
            .await?;
        let account = self.context.service_account_on(&access);
        let mut lines = options.tail_lines;
        let text = loop {
            let query = build_query(options, lines);
            let writer = &access.api.writer;
            match writer.read_pod_log(account, key, &query, MAX_LOG_BYTES).await {
                Ok(bytes) => break String::from_utf8_lossy(&bytes).into_owned(),
                Err(ApiError::TooLarge(_)) if lines > 1 => lines = (lines / FEWER_LINES).max(1),
                Err(e) => return Err(self.map_api_error(&access, e)),
            }
        };
        self.charge_bytes_from_host(text.len())?;
        Ok(text)
    }
}

/// The query of a request for some lines. A line that is alone too long is cut.
fn build_query(options: &LogOptions, lines: u32) -> String {
    let container = options.container.as_deref();
    let container = container
        .map(|name| format!("&container={name}"))
        .unwrap_or_default();
    let previous = if options.previous { "&previous=true" } else { "" };
    let limit = match lines {
        1 => format!("&limitBytes={MAX_LOG_BYTES}"),
        _ => String::new(),
    };
    format!("tailLines={lines}{limit}{container}{previous}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_names_container_and_instance_where_they_are_given() {
        let mut options = LogOptions {
            container: None,
            tail_lines: 100,
            previous: false,
        };
        assert_eq!(build_query(&options, 100), "tailLines=100");
        options.container = Some("process".into());
        options.previous = true;
        assert_eq!(
            build_query(&options, 12),
            "tailLines=12&container=process&previous=true"
        );
        assert_eq!(
            build_query(&options, 1),
            "tailLines=1&limitBytes=65536&container=process&previous=true"
        );
    }
}
