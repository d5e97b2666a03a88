//! The remote API: paths to operations.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::{
    JENKINS_USER, JenkinsModel, Simulation,
    builds::job_url,
    items::{FOLDER_CLASS, JenkinsRefusal, PIPELINE_CLASS},
    tree, xml,
};
use crate::{
    parse_basic,
    server::{ServerBehavior, lock},
};

/// A request, taken apart.
struct Call<'a> {
    method: &'a str,
    /// Path of the item, without `job` segments; empty for Jenkins itself.
    item: String,
    /// The segments below the item.
    rest: Vec<String>,
    query: Vec<(String, String)>,
    content_type: &'a str,
    body: &'a [u8],
    /// URL of the simulator, as the client sees it.
    url: String,
}

impl ServerBehavior for Simulation {
    async fn answer(&self, request: Request<Bytes>) -> Response<Bytes> {
        let mut model = lock(&self.0);
        let header = |name| {
            request
                .headers()
                .get(name)
                .and_then(|v| v.to_str().ok())
                .unwrap_or_default()
        };
        let is_known = parse_basic(request.headers())
            .is_some_and(|(user, token)| user == JENKINS_USER && token == model.token);
        let mut response = if is_known {
            let (item, rest) = split_path(request.uri().path());
            let query = request.uri().query().unwrap_or_default();
            let call = Call {
                method: request.method().as_str(),
                item,
                rest,
                query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
                content_type: header(header::CONTENT_TYPE),
                body: request.body(),
                url: format!("http://{}", header(header::HOST)),
            };
            model.respond(&call)
        } else {
            page(401, "Unauthorized")
        };
        response
            .headers_mut()
            .insert("x-jenkins", HeaderValue::from_static("2.579"));
        response
    }
}

/// Separates the path of the item from what is below it.
fn split_path(path: &str) -> (String, Vec<String>) {
    let decode = |segment| percent_decode_str(segment).decode_utf8_lossy().into_owned();
    let mut segments = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(decode)
        .peekable();
    let mut item = Vec::new();
    while segments.next_if(|segment| segment == "job").is_some() {
        item.extend(segments.next());
    }
    (item.join("/"), segments.collect())
}

impl JenkinsModel {
    fn respond(&mut self, call: &Call) -> Response<Bytes> {
        if !call.item.is_empty() && !self.items.contains_key(&call.item) {
            return page(404, "Not Found");
        }
        let rest: Vec<&str> = call.rest.iter().map(String::as_str).collect();
        match (call.method, &rest[..]) {
            ("POST", ["createItem"]) => self.create(call),
            ("GET", ["config.xml"]) if !call.item.is_empty() => {
                xml_document(&xml::reserialize(&self.items[&call.item].config))
            }
            ("POST", ["config.xml"]) if !call.item.is_empty() => {
                done(self.update_item(&call.item, &call.text()), 200)
            }
            ("POST", ["doDelete"]) if !call.item.is_empty() => {
                self.delete_item(&call.item);
                redirect("/")
            }
            ("DELETE", []) if !call.item.is_empty() => {
                self.delete_item(&call.item);
                empty(204)
            }
            ("GET", ["api", "json"]) => call.json(&self.describe(call)),
            ("GET", ["whoAmI", "api", "json"]) => call.json(
                &json!({"name": JENKINS_USER, "authenticated": true, "anonymous": false,
                    "authorities": ["authenticated"]}),
            ),
            ("GET", ["crumbIssuer", "api", "json"]) => call.json(&json!({"crumb": "c0ffee",
                "crumbRequestField": "Jenkins-Crumb", "_class": "hudson.security.csrf.DefaultCrumbIssuer"})),
            (_, ["credentials", "store", store, "domain", "_", rest @ ..]) => {
                let is_own = match call.item.as_str() {
                    "" => *store == "system",
                    item => *store == "folder" && self.items[item].is_folder(),
                };
                match is_own {
                    true => self.respond_credentials(call, rest),
                    false => page(404, "Not Found"),
                }
            }
            (_, ["queue", rest @ ..]) if call.item.is_empty() => self.respond_queue(call, rest),
            (_, rest) if !call.item.is_empty() => self.respond_build(call, rest),
            _ => page(404, "Not Found"),
        }
    }

    fn create(&mut self, call: &Call) -> Response<Bytes> {
        let Some(name) = call.parameter("name") else {
            return page(400, "Query parameter 'name' is required");
        };
        let path = match call.item.as_str() {
            "" => name.to_owned(),
            parent => format!("{parent}/{name}"),
        };
        match call.parameter("mode") {
            Some(FOLDER_CLASS) => {
                let created = self.create_item(&path, &format!("<{FOLDER_CLASS}/>"));
                created.map_or_else(refuse, |()| {
                    redirect(&format!("{}configure", job_url(&call.url, &path)))
                })
            }
            Some(mode) => page(400, &format!("No item type '{mode}' is known")),
            None if !call.is_xml() => page(400, "No mode given"),
            None => done(self.create_item(&path, &call.text()), 200),
        }
    }

    fn describe(&self, call: &Call) -> Value {
        match call.item.as_str() {
            "" => {
                json!({"_class": "hudson.model.Hudson", "mode": "NORMAL", "nodeName": "", "useSecurity": true,
                "jobs": self.describe_children("", &call.url), "url": format!("{}/", call.url)})
            }
            item => self.describe_item(item, &call.url),
        }
    }

    fn describe_children(&self, folder: &str, url: &str) -> Vec<Value> {
        let is_child = |path: &str| path.rsplit_once('/').map_or("", |(parent, _)| parent) == folder;
        let children = self.items.keys().filter(|path| is_child(path));
        children.map(|path| self.describe_item(path, url)).collect()
    }

    fn describe_item(&self, path: &str, url: &str) -> Value {
        let item = &self.items[path];
        let class = if item.is_folder() {
            FOLDER_CLASS
        } else {
            PIPELINE_CLASS
        };
        let mut json = json!({"_class": class, "name": path.rsplit('/').next(), "fullName": path,
            "url": job_url(url, path), "description": xml::child_text(&item.config, "description")});
        if item.is_folder() {
            json["jobs"] = self.describe_children(path, url).into();
        } else {
            let builds: Vec<Value> = item.builds.values().rev().map(|b| b.json(path, url)).collect();
            json["lastBuild"] = builds.first().cloned().unwrap_or_default();
            json["builds"] = builds.into();
            json["buildable"] = (!item.is_disabled()).into();
            json["inQueue"] = self
                .queue
                .values()
                .any(|q| q.is_waiting() && q.job == path)
                .into();
            json["nextBuildNumber"] = item.builds.keys().next_back().map_or(1, |last| last + 1).into();
        }
        json
    }

    fn respond_credentials(&mut self, call: &Call, rest: &[&str]) -> Response<Bytes> {
        let folder = call.item.clone();
        match (call.method, rest) {
            ("GET", ["api", "json"]) => call.json(&self.list_credentials(&folder)),
            ("POST", ["createCredentials"]) if !call.is_xml() => page(400, "No content type"),
            ("POST", ["createCredentials"]) => done(self.create_credential(&folder, &call.text()), 200),
            ("GET", ["credential", id, "config.xml"]) => {
                match self.credentials.get(&(folder, (*id).to_owned())) {
                    Some(found) => xml_document(&xml::reserialize(&xml::redact(found))),
                    None => page(404, "Not Found"),
                }
            }
            ("POST", ["credential", id, "config.xml"]) => {
                done(self.update_credential(&folder, id, &call.text()), 200)
            }
            ("DELETE", ["credential", id, "config.xml"]) => {
                match self.credentials.remove(&(folder, (*id).to_owned())) {
                    Some(_) => empty(200),
                    None => page(404, "Not Found"),
                }
            }
            ("POST", ["credential", id, "doDelete"]) => {
                match self.credentials.remove(&(folder, (*id).to_owned())) {
                    Some(_) => redirect("/"),
                    None => page(404, "Not Found"),
                }
            }
            _ => page(404, "Not Found"),
        }
    }

    fn respond_queue(&mut self, call: &Call, rest: &[&str]) -> Response<Bytes> {
        match (call.method, rest) {
            // Without the items that have left it, which can be read by their ids for some time.
            ("GET", ["api", "json"]) => {
                let waiting = self.queue.values().filter(|item| item.is_waiting());
                let items: Vec<_> = waiting
                    .filter_map(|item| self.queue_item(item.id, &call.url))
                    .collect();
                call.json(&json!({"_class": "hudson.model.Queue", "items": items}))
            }
            ("GET", ["item", id, "api", "json"]) => {
                self.advance();
                let found = id.parse().ok().and_then(|id| self.queue_item(id, &call.url));
                found.map_or_else(|| page(404, "Not Found"), |json| call.json(&json))
            }
            ("POST", ["cancelItem"]) => {
                let id = call.parameter("id").and_then(|id| id.parse().ok());
                match id
                    .and_then(|id: u64| self.queue.get_mut(&id))
                    .map(|item| item.cancel())
                {
                    Some(true) => empty(204),
                    Some(false) => empty(422),
                    None => page(404, "Not Found"),
                }
            }
            _ => page(404, "Not Found"),
        }
    }

    fn respond_build(&mut self, call: &Call, rest: &[&str]) -> Response<Bytes> {
        match (call.method, rest) {
            ("POST", ["build"]) => {
                let queued = self.enqueue(&call.item, None);
                queued.map_or_else(refuse, |(id, _)| queue_location(call, 201, id))
            }
            ("POST", ["buildWithParameters"]) => {
                let form = form_urlencoded::parse(call.body).into_owned();
                let given: Vec<_> = call.query.iter().cloned().chain(form).collect();
                let queued = self.enqueue(&call.item, Some(&given));
                queued.map_or_else(refuse, |(id, folded)| {
                    queue_location(call, if folded { 303 } else { 201 }, id)
                })
            }
            ("GET", [name, "api", "json"]) => {
                self.advance();
                match self.find_build(&call.item, name) {
                    Some(build) => call.json(&build.json(&call.item, &call.url)),
                    None => page(404, "Not Found"),
                }
            }
            ("GET", [name, "wfapi", "describe"]) => match self.find_build(&call.item, name) {
                Some(build) => call.json(&build.stages_json()),
                None => page(404, "Not Found"),
            },
            ("GET", [name, "logText", "progressiveText"]) => match self.find_build(&call.item, name) {
                Some(build) => progressive_text(call, &build.log(), build.result.is_none()),
                None => page(404, "Not Found"),
            },
            ("POST", [number, "stop" | "term" | "kill"]) => {
                let job = call.item.clone();
                match self
                    .find_build(&job, number)
                    .map(|b| (b.number, b.result.is_some()))
                {
                    Some((number, false)) => self.finish_build(&job, number, "ABORTED"),
                    Some((_, true)) => {}
                    None => return page(404, "Not Found"),
                }
                redirect(&job_url(&call.url, &job))
            }
            _ => page(404, "Not Found"),
        }
    }
}

impl Call<'_> {
    fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(self.body).into_owned()
    }

    fn is_xml(&self) -> bool {
        self.content_type.starts_with("application/xml") || self.content_type.starts_with("text/xml")
    }

    fn json(&self, document: &Value) -> Response<Bytes> {
        let selected = self.parameter("tree").map(|tree| tree::select(document, tree));
        let text = selected.as_ref().unwrap_or(document).to_string();
        typed(200, "application/json;charset=utf-8", text)
    }
}

fn queue_location(call: &Call, status: u16, id: u64) -> Response<Bytes> {
    let mut response = empty(status);
    let location = format!("{}/queue/item/{id}/", call.url);
    response
        .headers_mut()
        .insert(header::LOCATION, location.parse().expect("a header"));
    response
}

fn progressive_text(call: &Call, log: &str, more: bool) -> Response<Bytes> {
    let start = call
        .parameter("start")
        .and_then(|start| start.parse().ok())
        .unwrap_or(0);
    let start = if start > log.len() { 0 } else { start };
    let mut response = typed(200, "text/plain;charset=UTF-8", log[start..].to_owned());
    response
        .headers_mut()
        .insert("x-text-size", HeaderValue::from(log.len()));
    if more {
        response
            .headers_mut()
            .insert("x-more-data", HeaderValue::from_static("true"));
    }
    response
}

fn done(result: Result<(), JenkinsRefusal>, status: u16) -> Response<Bytes> {
    result.map_or_else(refuse, |()| empty(status))
}

fn refuse((status, message): JenkinsRefusal) -> Response<Bytes> {
    let mut response = page(status, &message);
    if let (400, Ok(value)) = (status, HeaderValue::from_bytes(message.as_bytes())) {
        response.headers_mut().insert("x-error", value);
    }
    response
}

fn redirect(location: &str) -> Response<Bytes> {
    let mut response = empty(302);
    response
        .headers_mut()
        .insert(header::LOCATION, location.parse().expect("a header"));
    response
}

fn xml_document(xml: &str) -> Response<Bytes> {
    typed(200, "application/xml", xml.to_owned())
}

fn page(status: u16, message: &str) -> Response<Bytes> {
    typed(
        status,
        "text/html;charset=utf-8",
        format!("<html><body><h1>{message}</h1></body></html>"),
    )
}

fn empty(status: u16) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

fn typed(status: u16, kind: &str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, kind.parse().expect("a header"));
    response
}
