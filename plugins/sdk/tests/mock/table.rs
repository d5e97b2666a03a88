//! Calls of host functions with their results, by which the hosts in memory of the other SDKs are tested, too. This mock writes
//! the results with `UPDATE_TABLES=1`.

use std::fs;

use ostler_sdk::{
    ApplyOptions, Capabilities, ConditionStatus, CreateOptions, DeleteOptions, LogOptions, Method, ObjectRef,
    Preconditions, Projection, Propagation, SecretKeyRef, UpstreamRef,
    bindings::ostler::plugin::{
        http,
        kubernetes::{GetOptions, ListOptions},
    },
    mock::{MockHost, response},
    prelude::*,
    serde_json::{self, Value},
};

/// The object whose reconcile makes the calls.
#[ostler_sdk::resource(group = "example.dev", version = "v1", namespaced)]
pub struct CallerSpec {
    /// The calls.
    pub calls: Vec<Value>,
}

#[test]
fn calls_of_the_table_have_its_results() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mock/table.json");
    let text = fs::read_to_string(path).expect("the table");
    let mut table: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let mut wrong = Vec::new();
    for case in &mut table {
        let expected = run_case(case);
        if case["expect"] != expected {
            wrong.push(format!(
                "{}: {expected}\n  in the table: {}",
                case["name"], case["expect"]
            ));
        }
        case["expect"] = expected;
    }
    if std::env::var_os("UPDATE_TABLES").is_some() {
        let lines: Vec<String> = table.iter().map(Value::to_string).collect();
        fs::write(path, format!("[\n{}\n]\n", lines.join(",\n"))).expect("written");
        return;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(table.len() > 100, "{}", table.len());
}

fn run_case(case: &Value) -> Value {
    let host = MockHost::new();
    let list = |field: &str| case[field].as_array().cloned().unwrap_or_default();
    let map = |field: &str| case[field].as_object().cloned().unwrap_or_default();
    for object in list("objects") {
        host.put(object);
    }
    for (cluster, objects) in map("objectsOn") {
        for object in objects.as_array().expect("a list") {
            host.put_on(&cluster, object.clone());
        }
    }
    for hidden in list("hidden") {
        host.hide_from_cache(&reference(&hidden));
    }
    for log in list("logs") {
        host.set_log(&reference(&log[0]), text(&log[1]), text(&log[2]));
    }
    for pair in list("holders") {
        host.add_holder(&reference(&pair[0]), reference(&pair[1]));
    }
    for (pool, count) in map("usedPermits") {
        host.use_permits(
            &pool,
            usize::try_from(count.as_u64().expect("a count")).expect("small"),
        );
    }
    for denied in list("denied") {
        host.deny(text(&denied));
    }
    for secret in list("secrets") {
        host.secret(text(&secret[0]), text(&secret[1]), text(&secret[2]));
    }
    if !case["config"].is_null() {
        host.set_config(case["config"].clone());
    }
    host.set_now(case["now"].as_u64().unwrap_or(0));
    let mut answers: Vec<((String, String), Vec<_>)> = Vec::new();
    for answer in list("answers") {
        let key = (text(&answer[0]).to_owned(), text(&answer[1]).to_owned());
        let status = u16::try_from(answer[2].as_u64().expect("a status")).expect("a status");
        let made = Ok(response(status, &[], answer[3].clone()));
        match answers.iter_mut().find(|(other, _)| *other == key) {
            Some((_, all)) => all.push(made),
            None => answers.push((key, vec![made])),
        }
    }
    for ((method, path), all) in answers {
        host.answers(&method, &path, all);
    }
    let mut results = Vec::new();
    for calls in list("reconciles") {
        let caller = json!({"metadata": {"name": "caller", "namespace": "n", "uid": "owner"}, "spec": {"calls": calls}});
        let status = match host.reconcile(&CallMaker(&host), &caller) {
            Ok(outcome) => outcome.status,
            Err(failure) => failure.status,
        };
        let mut status: Value = serde_json::from_slice(&status.expect("a status")).expect("JSON");
        results.push(status["results"].take());
    }
    let kinds = [("", "ConfigMap"), ("", "Pod"), ("example.dev", "ConfigMap")];
    let objects: Vec<_> = kinds
        .iter()
        .flat_map(|(group, kind)| host.objects(&gvk(group, "v1", kind)))
        .collect();
    json!({
        "results": results, "objects": objects, "writes": host.writes(), "requests": host.requests(), "held": host.held(),
        "permits": host.permits("p") + host.permits("q") + host.permits("r"),
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn optional(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn reference(value: &Value) -> ObjectRef {
    let api_version = text(&value["apiVersion"]);
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    ObjectRef {
        gvk: gvk(group, version, text(&value["kind"])),
        cluster: optional(&value["cluster"]),
        namespace: optional(&value["namespace"]),
        name: text(&value["name"]).to_owned(),
    }
}

/// Makes the calls of an object at the functions of the host.
struct CallMaker<'a>(&'a MockHost);

impl Reconciler for CallMaker<'_> {
    type Spec = CallerSpec;

    fn reconcile(&self, _: &Context, caller: &Caller) -> Result<Outcome, Failure> {
        let mut results = Vec::new();
        let mut fails = false;
        for call in &caller.spec.calls {
            if call["do"] == "fail" {
                fails = true;
                continue;
            }
            results.push(match make_call(self.0, call) {
                Ok(value) => json!({ "ok": value }),
                Err(error) => describe(&error),
            });
        }
        let status = json!({ "results": results });
        if fails {
            return Err(Failure::retry("Asked", "as asked").status(&status));
        }
        Ok(Outcome::await_change().status(&status))
    }
}

fn make_call(host: &MockHost, call: &Value) -> Result<Value, Error> {
    let parse = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).expect("JSON");
    // A text of the table that is not JSON, or a value.
    let body = |field: &str| match call["raw"].as_str() {
        Some(raw) => raw.as_bytes().to_vec(),
        None => call[field].to_string().into_bytes(),
    };
    let flag = |field: &str| call[field].as_bool().unwrap_or_default();
    let number = |field: &str| u32::try_from(call[field].as_u64().unwrap_or_default()).expect("small");
    let object = || reference(&call["ref"]);
    let (cluster, owned, force) = (optional(&call["cluster"]), flag("owned"), true);
    let preconditions = || Preconditions {
        uid: optional(&call["uid"]),
        resource_version: optional(&call["resourceVersion"]),
    };
    let projection = match &call["fields"] {
        Value::Array(fields) => {
            Projection::Fields(fields.iter().map(|field| text(field).to_owned()).collect())
        }
        _ if flag("metadata") => Projection::Metadata,
        _ => Projection::Full,
    };
    let live = flag("live");
    Ok(match text(&call["do"]) {
        "get" => {
            let found = host.kubernetes_get(&object(), &GetOptions { live, projection })?;
            found.map_or(Value::Null, parse)
        }
        "list" => {
            let options = ListOptions {
                cluster,
                namespace: optional(&call["namespace"]),
                label_selector: optional(&call["labels"]),
                field_selector: optional(&call["fieldSelector"]),
                projection,
                limit: call["limit"].is_u64().then(|| number("limit")),
                continue_token: None,
                live,
            };
            let page = host.kubernetes_list(&reference(call).gvk, &options)?;
            page.items.into_iter().map(parse).collect()
        }
        "requireReady" => parse(host.kubernetes_require_ready(&object())?),
        "requireCondition" => {
            let status = match text(&call["status"]) {
                "true" => ConditionStatus::True,
                "false" => ConditionStatus::False,
                _ => ConditionStatus::Unknown,
            };
            parse(host.kubernetes_require_condition(&object(), text(&call["type"]), status)?)
        }
        "apply" => {
            let options = ApplyOptions {
                cluster,
                owned,
                force,
                substitutions: Vec::new(),
            };
            parse(host.kubernetes_apply(&body("object"), &options)?)
        }
        "create" => {
            let options = CreateOptions {
                cluster,
                owned,
                substitutions: Vec::new(),
            };
            parse(host.kubernetes_create(&body("object"), &options)?)
        }
        "patch" => parse(host.kubernetes_patch(&object(), &body("patch"), &preconditions())?),
        "patchSubresource" => {
            let subresource = text(&call["subresource"]);
            parse(host.kubernetes_patch_subresource(
                &object(),
                subresource,
                &body("patch"),
                &preconditions(),
            )?)
        }
        "delete" => {
            let propagation = match text(&call["propagation"]) {
                "foreground" => Propagation::Foreground,
                _ => Propagation::Background,
            };
            let preconditions = preconditions();
            host.kubernetes_delete(
                &object(),
                &DeleteOptions {
                    propagation,
                    preconditions,
                },
            )?;
            Value::Null
        }
        "readLog" => {
            let options = LogOptions {
                container: optional(&call["container"]),
                tail_lines: number("tailLines"),
                previous: false,
            };
            host.kubernetes_read_log(&object(), &options)?.into()
        }
        "hold" => {
            host.references_hold(&object())?;
            Value::Null
        }
        "listHolders" => {
            let holders = host.references_list_holders(&object())?;
            holders
                .iter()
                .map(|holder| format!("{} {}", holder.gvk.kind, holder.name))
                .collect()
        }
        "acquire" => host
            .permits_acquire(text(&call["pool"]), number("limit"), flag("held"))?
            .into(),
        "release" => {
            host.permits_release(text(&call["pool"]));
            Value::Null
        }
        "digest" => {
            let secret = SecretKeyRef {
                cluster: None,
                namespace: None,
                name: text(&call["name"]).to_owned(),
                key: text(&call["key"]).to_owned(),
            };
            host.http_secret_digest(&secret)?.into()
        }
        "config" => parse(host.config_get()),
        "now" => host.clock_now().into(),
        "send" => {
            let method = match text(&call["method"]) {
                "POST" => Method::Post,
                _ => Method::Get,
            };
            let sent = host.http_send(&http::Request {
                upstream: UpstreamRef {
                    cluster: None,
                    namespace: None,
                    name: "u".to_owned(),
                },
                method,
                path_and_query: text(&call["path"]).to_owned(),
                headers: Vec::new(),
                body: None,
                substitutions: Vec::new(),
                timeout: None,
            })?;
            json!([sent.status, String::from_utf8_lossy(&sent.body)])
        }
        other => panic!("{other}: no call of the table"),
    })
}

fn describe(error: &Error) -> Value {
    let tag = match error {
        Error::Denied(_) => "denied",
        Error::NotFound(_) => "not-found",
        Error::Conflict(_) => "conflict",
        Error::Invalid(_) => "invalid",
        Error::Throttled(_) => "throttled",
        Error::Unavailable(_) => "unavailable",
        Error::NotReady(other) => {
            return json!({
                "error": "not-ready", "condition": other.condition, "exists": other.exists, "reason": other.reason,
                "message": other.message,
            });
        }
        Error::LimitExceeded(_) => "limit-exceeded",
        Error::Unsupported(_) => "unsupported",
    };
    json!({ "error": tag })
}
