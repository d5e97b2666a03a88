//! GoDaddy's Domains API v1: records of one name and type are replaced together.
//!
//! Paths and bodies are those of its OpenAPI document. Errors are those that users of its clients have reported: 401
//! `UNABLE_TO_AUTHENTICATE` (acme.sh#1564), 403 `ACCESS_DENIED` for accounts with few domains (Posh-ACME#655). None of it was compared
//! with the service itself.

use serde_json::{Value, json};

use crate::{
    is_valid,
    server::{ApiRequest, DnsSimulator, SimulatedApi, SimulatedResponse},
};

const MIN_TTL: u64 = 600;
const MAX_TTL: u64 = 604_800;
/// Types that can be changed.
const TYPES: [&str; 6] = ["A", "AAAA", "CNAME", "MX", "SRV", "TXT"];

/// The state of the API.
pub struct GoDaddy {
    zone: String,
    /// `KEY:SECRET`.
    credentials: String,
    records: Vec<Value>,
}

impl DnsSimulator<GoDaddy> {
    /// Starts a simulator with one domain and one pair of key and secret.
    pub async fn start_godaddy(zone: &str, credentials: &str) -> Self {
        Self::serve(GoDaddy {
            zone: zone.to_owned(),
            credentials: credentials.to_owned(),
            records: Vec::new(),
        })
        .await
    }

    /// Returns the records, each as `NAME TYPE TTL DATA`, sorted.
    pub fn records(&self) -> Vec<String> {
        self.with_api(|api| {
            let text = |record: &Value, field: &str| record[field].as_str().unwrap_or_default().to_owned();
            let mut lines: Vec<String> = api
                .records
                .iter()
                .map(|r| {
                    format!(
                        "{} {} {} {}",
                        text(r, "name"),
                        text(r, "type"),
                        r["ttl"],
                        text(r, "data")
                    )
                })
                .collect();
            lines.sort_unstable();
            lines
        })
    }

    /// Makes a record past Ostler.
    pub fn put_record(&self, record: &Value) {
        self.with_api(|api| api.records.push(record.clone()));
    }

    /// Removes the records of a name and type past Ostler.
    pub fn remove_records(&self, kind: &str, name: &str) {
        self.with_api(|api| api.records.retain(|record| !is_at(record, kind, name)));
    }

    /// Replaces key and secret.
    pub fn set_credentials(&self, credentials: &str) {
        self.with_api(|api| credentials.clone_into(&mut api.credentials));
    }
}

impl SimulatedApi for GoDaddy {
    fn answer(&mut self, call: &ApiRequest) -> SimulatedResponse {
        if call.authorization != format!("sso-key {}", self.credentials) {
            return failure(
                401,
                "UNABLE_TO_AUTHENTICATE",
                "Unauthorized : Could not authenticate API key/secret",
            );
        }
        let path = call.path.clone();
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match (&*call.method, &segments[..]) {
            ("GET", ["v1", "domains"]) => (200, json!([{"domain": self.zone, "status": "ACTIVE"}])),
            (_, ["v1", "domains", zone, ..]) if *zone != self.zone => failure(
                404,
                "UNKNOWN_DOMAIN",
                "The given domain is not registered, or does not have a zone file",
            ),
            ("GET", [_, _, _, "records"]) => (200, Value::from(self.records.clone())),
            ("GET", [_, _, _, "records", kind, name]) => {
                let found: Vec<Value> = self
                    .records
                    .iter()
                    .filter(|r| is_at(r, kind, name))
                    .cloned()
                    .collect();
                (200, Value::from(found))
            }
            ("PUT", [_, _, _, "records", kind, name]) => self.replace(kind, name, &call.body),
            ("DELETE", [_, _, _, "records", kind, name]) => {
                let before = self.records.len();
                self.records.retain(|r| !is_at(r, kind, name));
                if self.records.len() == before {
                    return failure(404, "NOT_FOUND", "No records found");
                }
                (204, Value::Null)
            }
            _ => failure(405, "METHOD_NOT_ALLOWED", "Method not allowed"),
        }
    }

    fn throttled(&self, seconds: u32) -> Value {
        json!({"code": "TOO_MANY_REQUESTS", "message": "Too many requests received within interval",
            "retryAfterSec": seconds})
    }
}

impl GoDaddy {
    fn replace(&mut self, kind: &str, name: &str, body: &Value) -> SimulatedResponse {
        let Some(records) = body.as_array().filter(|records| !records.is_empty()) else {
            return failure(422, "INVALID_BODY", "Request body doesn't fulfill schema");
        };
        if !TYPES.contains(&kind) {
            return failure(
                422,
                "INVALID_VALUE_ENUM",
                "type not any of: A, AAAA, CNAME, MX, SRV, TXT",
            );
        }
        let mut stored = Vec::new();
        for (index, record) in records.iter().enumerate() {
            let refuse = |field: &str, message: &str| {
                let body = json!({"code": "INVALID_BODY", "message": "Request body doesn't fulfill schema, see details in `fields`",
                    "fields": [{"code": "UNKNOWN_RESTRICTION", "message": message, "path": format!("records[{index}].{field}")}]});
                (422, body)
            };
            let ttl = record["ttl"].as_u64().unwrap_or(3600);
            if ttl < MIN_TTL {
                return refuse("ttl", "must have a minimum value of 600");
            }
            if ttl > MAX_TTL {
                return refuse("ttl", "must have a maximum value of 604800");
            }
            if !is_valid(kind, record["data"].as_str().unwrap_or_default()) {
                return refuse("data", "is invalid");
            }
            if kind == "SRV" && !(record["service"].is_string() && record["protocol"].is_string()) {
                return refuse("service", "is required");
            }
            let mut record = record.clone();
            record["name"] = name.into();
            record["type"] = kind.into();
            record["ttl"] = ttl.into();
            stored.push(record);
        }
        let is_other = |r: &&Value| r["name"] == name && (kind == "CNAME") != (r["type"] == "CNAME");
        if self.records.iter().any(|r| is_other(&r)) {
            return failure(
                422,
                "DUPLICATE_RECORD",
                "Another record with the same attributes already exists",
            );
        }
        self.records.retain(|r| !is_at(r, kind, name));
        self.records.append(&mut stored);
        (200, Value::Null)
    }
}

fn is_at(record: &Value, kind: &str, name: &str) -> bool {
    record["type"] == kind && record["name"] == name
}

fn failure(status: u16, code: &str, message: &str) -> SimulatedResponse {
    (status, json!({"code": code, "message": message}))
}
