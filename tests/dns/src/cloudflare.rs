//! Cloudflare's API v4: zones, and one object per record.
//!
//! Paths, the envelope and the batch are those of its API reference. Errors are those that users of its clients have reported: HTTP 400
//! with 6003 for a token that has not the form of one (cloudflare-go#643, libdns/cloudflare#12), Unicode names of zones
//! (cloudflare-go#347). None of it was compared with the service itself.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    is_valid,
    server::{ApiRequest, DnsSimulator, SimulatedApi, SimulatedResponse},
};

const BASE: &str = "/client/v4";
const ZONE_ID: &str = "0123456789abcdef0123456789abcdef";

/// The state of the API.
pub struct Cloudflare {
    zone: String,
    token: String,
    records: BTreeMap<String, Value>,
    next_id: u32,
}

impl DnsSimulator<Cloudflare> {
    /// Starts a simulator with one zone and one token.
    pub async fn start_cloudflare(zone: &str, token: &str) -> Self {
        Self::serve(Cloudflare {
            zone: zone.to_owned(),
            token: token.to_owned(),
            records: BTreeMap::new(),
            next_id: 1,
        })
        .await
    }

    /// Returns the base URL.
    pub fn url(&self) -> String {
        format!("{}{BASE}", self.origin())
    }

    /// Returns the records, each as `NAME TYPE TTL CONTENT`, sorted.
    pub fn records(&self) -> Vec<String> {
        self.with_api(|api| {
            let text = |record: &Value, field: &str| record[field].as_str().unwrap_or_default().to_owned();
            let mut lines: Vec<String> = api
                .records
                .values()
                .map(|r| {
                    format!(
                        "{} {} {} {}",
                        text(r, "name"),
                        text(r, "type"),
                        r["ttl"],
                        text(r, "content")
                    )
                })
                .collect();
            lines.sort_unstable();
            lines
        })
    }

    /// Makes a record past Ostler.
    pub fn put_record(&self, record: &Value) {
        self.with_api(|api| api.create(record)).expect("a valid record");
    }

    /// Replaces the token.
    pub fn set_token(&self, token: &str) {
        self.with_api(|api| token.clone_into(&mut api.token));
    }
}

impl SimulatedApi for Cloudflare {
    fn answer(&mut self, call: &ApiRequest) -> SimulatedResponse {
        let token = call.authorization.strip_prefix("Bearer ").unwrap_or_default();
        let is_token_character = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if token.is_empty() || !token.chars().all(is_token_character) {
            return failure(400, 6003, "Invalid request headers");
        }
        if token != self.token {
            return failure(
                if call.path.ends_with("/verify") { 401 } else { 403 },
                10000,
                "Authentication error",
            );
        }
        let path = call.path.strip_prefix(BASE).unwrap_or_default().to_owned();
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match (&*call.method, &segments[..]) {
            ("GET", ["user", "tokens", "verify"]) => success(json!({"id": "t1", "status": "active"}), 1, 1),
            ("GET", ["zones"]) => {
                let is_asked = call.parameter("name").is_none_or(|name| name == self.zone);
                let zone = json!({"id": ZONE_ID, "name": self.zone, "status": "active"});
                success(Value::from(if is_asked { vec![zone] } else { Vec::new() }), 1, 1)
            }
            (_, ["zones", zone, ..]) if *zone != ZONE_ID => failure(404, 7003, "Could not route to the zone"),
            ("GET", [_, _, "dns_records"]) => self.list(call),
            ("POST", [_, _, "dns_records", "batch"]) => self.run_batch(&call.body),
            _ => failure(405, 10405, "Method not allowed for this authentication scheme"),
        }
    }

    fn throttled(&self, _seconds: u32) -> Value {
        failure(429, 971, "Please wait and consider throttling your request speed").1
    }
}

type Refusal = (u32, String);

impl Cloudflare {
    fn list(&self, call: &ApiRequest) -> SimulatedResponse {
        let is_asked = |record: &&Value| {
            let matches =
                |parameter: &str, field: &str| call.parameter(parameter).is_none_or(|v| record[field] == v);
            matches("name.exact", "name") && matches("name", "name") && matches("type", "type")
        };
        let found: Vec<Value> = self.records.values().filter(is_asked).cloned().collect();
        let (page, per_page) = (call.number("page", 1).max(1), call.number("per_page", 100).max(1));
        let pages = found.len().div_ceil(per_page).max(1);
        let items: Vec<Value> = found
            .into_iter()
            .skip((page - 1) * per_page)
            .take(per_page)
            .collect();
        success(Value::from(items), page, pages)
    }

    /// Deletes, patches and posts in this order, all or nothing.
    fn run_batch(&mut self, batch: &Value) -> SimulatedResponse {
        let (before, next_id) = (self.records.clone(), self.next_id);
        match self.try_batch(batch) {
            Ok(result) => success(result, 1, 1),
            Err((code, message)) => {
                (self.records, self.next_id) = (before, next_id);
                failure(400, code, &message)
            }
        }
    }

    fn try_batch(&mut self, batch: &Value) -> Result<Value, Refusal> {
        let items = |name: &str| batch[name].as_array().cloned().unwrap_or_default();
        for item in items("deletes") {
            let id = item["id"].as_str().unwrap_or_default();
            self.records
                .remove(id)
                .ok_or((81044, "Record does not exist.".to_owned()))?;
        }
        for item in items("patches") {
            let id = item["id"].as_str().unwrap_or_default();
            let mut record = self
                .records
                .remove(id)
                .ok_or((81044, "Record does not exist.".to_owned()))?;
            for (field, value) in item.as_object().into_iter().flatten() {
                record[field] = value.clone();
            }
            let record = self.validate(&record)?;
            self.records.insert(id.to_owned(), record);
        }
        for item in items("posts") {
            self.create(&item)?;
        }
        Ok(json!({"deletes": [], "patches": [], "posts": []}))
    }

    fn create(&mut self, record: &Value) -> Result<(), Refusal> {
        let mut record = self.validate(record)?;
        let id = format!("r{:04}", self.next_id);
        self.next_id += 1;
        record["id"] = id.clone().into();
        self.records.insert(id, record);
        Ok(())
    }

    /// A record as it is stored, beside the others.
    fn validate(&self, record: &Value) -> Result<Value, Refusal> {
        let refuse = |code: u32, message: &str| Err((code, message.to_owned()));
        let mut record = record.clone();
        let text = |field: &str| record[field].as_str().unwrap_or_default().to_ascii_lowercase();
        let (name, kind) = (
            text("name"),
            record["type"].as_str().unwrap_or_default().to_owned(),
        );
        if name != self.zone && !name.ends_with(&format!(".{}", self.zone)) {
            return refuse(9000, "DNS name is invalid.");
        }
        let ttl = record["ttl"].as_u64().unwrap_or(1);
        if ttl != 1 && !(60..=86_400).contains(&ttl) {
            return refuse(
                9021,
                "Invalid TTL. Must be between 60 and 86400 seconds, or 1 for Automatic.",
            );
        }
        let is_proxied = record["proxied"] == true;
        if is_proxied && !matches!(&*kind, "A" | "AAAA" | "CNAME") {
            return refuse(9004, "This record type cannot be proxied.");
        }
        if kind == "SRV" {
            let data = record["data"].clone();
            if !data["port"].is_u64() || !data["target"].is_string() {
                return refuse(9101, "data is a required field.");
            }
            let target = data["target"].as_str().unwrap_or_default();
            record["content"] = format!("{} {} {target}", data["weight"], data["port"]).into();
            record["priority"] = data["priority"].clone();
        } else {
            let content = record["content"].as_str().unwrap_or_default();
            if !is_valid(&kind, content) || (kind == "MX" && !record["priority"].is_u64()) {
                return refuse(9005, "Content for the record is invalid.");
            }
        }
        record["name"] = name.clone().into();
        record["proxied"] = is_proxied.into();
        record["ttl"] = if is_proxied { 1 } else { ttl }.into();
        for other in self.records.values().filter(|other| other["name"] == name) {
            if other["type"] == *kind
                && other["content"] == record["content"]
                && other["priority"] == record["priority"]
            {
                return refuse(81058, "An identical record already exists.");
            }
            if (kind == "CNAME") != (other["type"] == "CNAME") {
                return refuse(
                    81053,
                    "An A, AAAA, or CNAME record with that host already exists.",
                );
            }
        }
        Ok(record)
    }
}

fn success(result: Value, page: usize, pages: usize) -> SimulatedResponse {
    let body = json!({"success": true, "errors": [], "messages": [], "result": result,
        "result_info": {"page": page, "total_pages": pages}});
    (200, body)
}

fn failure(status: u16, code: u32, message: &str) -> SimulatedResponse {
    let body = json!({"success": false, "errors": [{"code": code, "message": message}], "messages": [], "result": null});
    (status, body)
}
