//! Entries of `messages`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Access, Permissions,
    entry::{OwnPlace, PermissionEntry},
    patterns::{
        covers_all, format_namespaces, match_all, matches_any, matches_namespace, require_items,
        require_values, same_namespace,
    },
    topic::{covers_topic, matches_topic},
};

/// Messages that a plugin may publish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct MessageGrant {
    /// Names of Upstreams. `*` matches any name, `foo*` a prefix. Defaults to `*`.
    #[serde(default = "match_all")]
    pub names: Vec<String>,
    /// Namespaces of Upstreams. `Same` matches the namespace of the reconciled object, `*` any namespace, `foo*` a prefix.
    /// Defaults to `Same`.
    #[serde(default = "same_namespace")]
    pub namespaces: Vec<String>,
    /// Exchanges. `*` matches any exchange with a name, `foo*` a prefix. The default exchange, through which every queue can
    /// be reached, is matched by the empty string only.
    pub exchanges: Vec<String>,
    /// Routing keys, with the patterns of topic exchanges: `*` matches one word between dots, `#` any number of words.
    /// Defaults to `#`.
    #[serde(default = "match_all_topics")]
    pub routing_keys: Vec<String>,
}

fn match_all_topics() -> Vec<String> {
    vec!["#".into()]
}

impl MessageGrant {
    /// An exchange asked for is covered. No pattern covers the default exchange.
    fn covers_exchange(&self, exchange: &String) -> bool {
        match exchange.as_str() {
            "" => self.exchanges.contains(exchange),
            _ => matches_any(&self.exchanges, exchange),
        }
    }
}

impl fmt::Display for MessageGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exchanges = self.exchanges.iter().map(|exchange| match exchange.as_str() {
            "" => "the default exchange",
            exchange => exchange,
        });
        write!(f, "publish to {}", exchanges.collect::<Vec<_>>().join(","))?;
        if !self.routing_keys.iter().any(|key| key == "#") {
            write!(f, " with key {}", self.routing_keys.join(","))?;
        }
        let namespaces = format_namespaces(&self.namespaces);
        write!(f, " at upstream {}{namespaces}", self.names.join(","))
    }
}

impl PermissionEntry for MessageGrant {
    fn field(&self) -> &'static str {
        "messages"
    }

    fn check_fields(&self) -> Result<(), String> {
        require_values(&[("names", &self.names), ("namespaces", &self.namespaces)])?;
        require_items("exchanges", &self.exchanges)?;
        require_items("routingKeys", &self.routing_keys)
    }

    fn allows(&self, access: &Access<'_>, own: OwnPlace<'_>, _: &Permissions) -> bool {
        let Access::Publish {
            namespace,
            name,
            exchange,
            routing_key,
        } = *access
        else {
            return false;
        };
        matches_any(&self.names, name)
            && matches_namespace(&self.namespaces, namespace, own.namespace_on(""))
            && matches_exchange(&self.exchanges, exchange)
            && self.routing_keys.iter().any(|p| matches_topic(p, routing_key))
    }

    fn find_missing(&self, granted: &Permissions) -> Option<String> {
        let covers_key = |g: &Self, key: &String| g.routing_keys.iter().any(|own| covers_topic(own, key));
        let covered = |g: &Self| {
            covers_all(&g.names, &self.names)
                && covers_all(&g.namespaces, &self.namespaces)
                && self.exchanges.iter().all(|exchange| g.covers_exchange(exchange))
                && self.routing_keys.iter().all(|key| covers_key(g, key))
        };
        (!granted.messages.iter().any(covered)).then(|| self.to_string())
    }
}

/// Some pattern matches an exchange. No pattern with `*` matches the default exchange, through which a message reaches
/// any queue.
fn matches_exchange(patterns: &[String], exchange: &str) -> bool {
    match exchange {
        "" => patterns.iter().any(String::is_empty),
        exchange => matches_any(patterns, exchange),
    }
}
