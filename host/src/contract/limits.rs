//! Resource limits of a plugin: one for every resource that a component could exhaust.
//!
//! The table at `limits!` is the only definition of a limit: its field, its default, and its name in grants and metrics.

use std::{borrow::Cow, fmt, time::Duration};

use k8s_openapi::jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Largest linear memory that can be granted, in bytes: the room in a slot of the instance pool.
pub const MAX_GRANTED_MEMORY: usize = 1 << 30;
/// Largest number of table elements that can be granted.
pub const MAX_GRANTED_TABLE_ELEMENTS: u32 = 100_000;

/// A number of bytes, written as `64Mi`, `512Ki`, `1Gi` or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub usize);

/// A duration, written as `500ms`, `30s`, `5m` or `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

/// Binary units of bytes, as Kubernetes quantities have them.
const BYTE_UNITS: [(&str, usize); 3] = [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)];

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = BYTE_UNITS
            .iter()
            .find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)));
        let (number, size) = unit.unwrap_or((text, 1));
        let bytes = number.parse::<usize>().ok().and_then(|n| n.checked_mul(size));
        bytes
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a number of bytes, such as 512Ki, 64Mi or 1Gi"))
    }
}

impl std::str::FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed: Option<Duration> = text.parse().ok().and_then(|d: SignedDuration| d.try_into().ok());
        parsed
            .filter(|d| !d.is_zero())
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a duration, such as 500ms, 30s or 5m"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let fits = |(_, size): &&(&str, usize)| self.0 > 0 && self.0.is_multiple_of(*size);
        match BYTE_UNITS.iter().rev().find(fits) {
            Some((unit, size)) => write!(f, "{}{unit}", self.0 / size),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match SignedDuration::try_from(self.0) {
            Ok(time) => write!(f, "{time:#}"),
            Err(_) => write!(f, "{:?}", self.0),
        }
    }
}

/// The unit of a limit, which decides its value in metrics.
trait Unit: Copy {
    fn measure(self) -> f64;
}

impl Unit for Bytes {
    fn measure(self) -> f64 {
        self.0 as f64
    }
}

impl Unit for Time {
    fn measure(self) -> f64 {
        self.0.as_secs_f64()
    }
}

impl Unit for u32 {
    fn measure(self) -> f64 {
        self.into()
    }
}

impl From<usize> for Bytes {
    fn from(bytes: usize) -> Self {
        Self(bytes)
    }
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self(time)
    }
}

impl From<Bytes> for usize {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Self {
        time.0
    }
}

/// Implements serde and the JSON schema of a type that is a string in files.
macro_rules! impl_text_format {
    ($type:ident, $pattern:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": $pattern})
            }
        }
    };
}

impl_text_format!(Bytes, "^[0-9]+(Ki|Mi|Gi)?$");
impl_text_format!(Time, "^([0-9]+(ms|s|m|h))+$");

macro_rules! limits {
    ($($(#[$doc:meta])* $variant:ident $field:ident $name:literal: $type:ty = $written:ty, $default:expr;)+) => {
        /// The resource limits of a plugin. Defaults are generous for a reconciler and small for a host.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct PluginLimits { $($(#[$doc])* pub $field: $type,)+ }

        impl Default for PluginLimits {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        /// Resource limits of a plugin. A limit that is unset has the host's default.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, rename_all = "camelCase")]
        #[schemars(transform = describe_defaults)]
        pub struct LimitsSpec {
            $($(#[$doc])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<$written>,)+
        }

        impl LimitsSpec {
            /// The limits of a plugin on a host with these defaults.
            pub fn with_defaults(&self, host: &PluginLimits) -> PluginLimits {
                PluginLimits { $($field: self.$field.map_or(host.$field, Into::into),)+ }
            }
        }

        /// One of the limits, for metrics and errors.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Limit { $($variant),+ }

        impl Limit {
            /// All limits.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name of the limit in grants and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl PluginLimits {
            /// The value for metrics: bytes, seconds or a number.
            pub fn measure(&self, limit: Limit) -> f64 {
                match limit { $(Limit::$variant => <$written>::from(self.$field).measure()),+ }
            }

            /// The value as grants have it: `64Mi`, `1s`.
            pub fn format_limit(&self, limit: Limit) -> String {
                match limit { $(Limit::$variant => <$written>::from(self.$field).to_string()),+ }
            }
        }
    };
}

limits! {
    /// Linear memory of one instance of the component; `1Gi` at most.
    Memory memory "memory": usize = Bytes, 64 << 20;
    /// Elements of the instance's tables, which have one for each indirectly called function; 100000 at most.
    TableElements table_elements "tableElements": u32 = u32, MAX_GRANTED_TABLE_ELEMENTS;
    /// CPU time of one call into the component, without host calls.
    CpuTime cpu_time "cpuTime": Duration = Time, Duration::from_secs(1);
    /// Wall-clock time of one call into the component, host calls included.
    Timeout timeout "timeout": Duration = Time, Duration::from_secs(60);
    /// Host calls of one reconcile. Each request of a `send-all` counts as one.
    HostCalls host_calls "hostCalls": u32 = u32, 1000;
    /// Bytes that the component passes to the host in one host call, or returns from one call.
    CallBytes call_bytes "callBytes": usize = Bytes, 16 << 20;
    /// Bytes that the component passes to the host in one reconcile.
    BytesToHost bytes_to_host "bytesToHost": usize = Bytes, 64 << 20;
    /// Bytes that the host returns to the component in one reconcile.
    BytesFromHost bytes_from_host "bytesFromHost": usize = Bytes, 64 << 20;
    /// Watches that reads of the plugin have started. Reads that a watch already serves start none, and many narrow
    /// watches of a kind are replaced by a wider one.
    Watches watches "watches": u32 = u32, 256;
    /// Objects that the lists of one reconcile return.
    ListedObjects listed_objects "listedObjects": u32 = u32, 20_000;
    /// Log lines of one reconcile, including standard output and standard error.
    LogLines log_lines "logLines": u32 = u32, 500;
    /// Log lines per minute, for all objects of the plugin.
    LogLinesPerMinute log_lines_per_minute "logLinesPerMinute": u32 = u32, 6000;
    /// Kubernetes Events per minute, for all objects of the plugin.
    EventsPerMinute events_per_minute "eventsPerMinute": u32 = u32, 1000;
    /// Metric series that the plugin exports.
    MetricSeries metric_series "metricSeries": u32 = u32, 500;
    /// Conditions in the status of one object.
    Conditions conditions "conditions": u32 = u32, 32;
    /// Bytes of all reasons and messages in the conditions of one object.
    ConditionBytes condition_bytes "conditionBytes": usize = Bytes, 64 << 10;
    /// Bytes of the status fields of one object, without conditions.
    StatusBytes status_bytes "statusBytes": usize = Bytes, 256 << 10;
    /// Objects that one object may hold.
    Holds holds "holds": u32 = u32, 100;
    /// Event streams that one object may subscribe to.
    Subscriptions subscriptions "subscriptions": u32 = u32, 16;
    /// Bytes that one object may cache, keys included.
    CacheBytes cache_bytes "cacheBytes": usize = Bytes, 64 << 10;
}

/// Adds its default to the description of each limit, so that `kubectl explain` shows it.
fn describe_defaults(schema: &mut Schema) {
    let defaults = PluginLimits::default();
    let fields = schema.get_mut("properties").and_then(|p| p.as_object_mut());
    for (name, field) in fields.into_iter().flatten() {
        let limit = Limit::ALL.iter().find(|limit| limit.name() == name);
        if let (Some(limit), Some(text)) = (limit, field["description"].as_str()) {
            field["description"] = format!("{text} Defaults to {}.", defaults.format_limit(*limit)).into();
        }
    }
}

impl LimitsSpec {
    /// Checks the limits against those of the instance pool. The error names the field.
    pub fn check(&self) -> Result<(), String> {
        match self.memory {
            Some(memory) if memory.0 > MAX_GRANTED_MEMORY => Err(format!(
                "limits.memory is {memory}: {} at most",
                Bytes(MAX_GRANTED_MEMORY)
            )),
            _ => match self.table_elements {
                Some(elements) if elements > MAX_GRANTED_TABLE_ELEMENTS => Err(format!(
                    "limits.tableElements is {elements}: {MAX_GRANTED_TABLE_ELEMENTS} at most"
                )),
                _ => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unset_limits_have_the_defaults_of_the_host() {
        let text = "{memory: 8Mi, cpuTime: 200ms, hostCalls: 7}";
        let spec: LimitsSpec = serde_saphyr::from_str(text).expect("parses");
        let host = PluginLimits {
            timeout: Duration::from_secs(9),
            ..PluginLimits::default()
        };
        let limits = spec.with_defaults(&host);
        let expected = PluginLimits {
            memory: 8 << 20,
            cpu_time: Duration::from_millis(200),
            host_calls: 7,
            ..host
        };
        assert_eq!(limits, expected);
        assert_eq!(limits.measure(Limit::CpuTime), 0.2);
        assert_eq!(limits.format_limit(Limit::Memory), "8Mi");
        assert_eq!(limits.format_limit(Limit::Timeout), "9s");
    }

    #[test]
    fn malformed_limit_is_an_error_with_its_value() {
        for (text, word) in [
            ("{memory: much}", "`much` is not a number of bytes"),
            ("{timeout: soon}", "`soon` is not a duration"),
            ("{timeout: 0s}", "`0s` is not a duration"),
            ("{hostCals: 1}", "hostCals"),
            ("{memory: 99999999999999999999Gi}", "not a number of bytes"),
        ] {
            let error = serde_saphyr::from_str::<LimitsSpec>(text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(word), "{error}");
        }
        let large: LimitsSpec = serde_saphyr::from_str("{memory: 2Gi}").expect("parses");
        assert_eq!(large.check().unwrap_err(), "limits.memory is 2Gi: 1Gi at most");
    }

    proptest! {
        #[test]
        fn bytes_are_parsed_as_they_are_formatted(n in any::<u32>()) {
            let bytes = Bytes(n as usize);
            prop_assert_eq!(bytes.to_string().parse(), Ok(bytes));
        }
    }
}
