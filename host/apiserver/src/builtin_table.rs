//! Tables of built-in kinds for `kubectl get`: the columns that the real server publishes, and their cells.
//!
//! The columns are in `builtin_table/columns.json.zlib`. A test on the real server compares the file with what it publishes, and
//! writes it with `UPDATE_OPENAPI=1`; another compares the cells on both servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::kind::ServedKind;
use crate::object::GroupResource;
use crate::published::read_compressed;
use crate::table::format_age;

/// The column definitions by resource, as JSON that zlib has compressed.
const COMPRESSED_COLUMNS: &[u8] = include_bytes!("builtin_table/columns.json.zlib");

static COLUMNS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| read_compressed(COMPRESSED_COLUMNS));

/// Maximum number of hosts, endpoints and ports in a cell.
const MAX_LISTED: usize = 3;
const NONE: &str = "<none>";
const UNSET: &str = "<unset>";
const UNKNOWN: &str = "<unknown>";

/// The column definitions of a built-in kind.
pub fn column_definitions(kind: &ServedKind) -> Value {
    let GroupResource { group, plural } = &kind.resource;
    let name = match &**group {
        "" => plural.to_string(),
        group => format!("{plural}.{group}"),
    };
    COLUMNS.get(&name).cloned().unwrap_or_default()
}

/// The cells of an object of a built-in kind.
pub fn build_cells(kind: &ServedKind, object: &Value, now: Timestamp) -> Vec<Value> {
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let name = metadata["name"].clone();
    let age = age(&metadata["creationTimestamp"], now);
    let template = &spec["template"]["spec"];
    let selector = || format_selector(&spec["selector"], NONE);
    let ready = || format!("{}/{}", count(&status["readyReplicas"]), count(&spec["replicas"]));
    let cells: Value = match &*kind.kind {
        "Namespace" => json!([name, text(&status["phase"]), age]),
        "Secret" => json!([name, text(&object["type"]), size(&object["data"]), age]),
        "ConfigMap" => json!([name, size(&object["data"]) + size(&object["binaryData"]), age]),
        "ServiceAccount" => json!([name, age]),
        "Event" => event_cells(object, now),
        "Pod" => {
            let (ready, reason, restarts) = summarize_pod(object, now);
            json!([
                name,
                ready,
                reason,
                restarts,
                age,
                text_or(&status["podIP"], NONE),
                text_or(&spec["nodeName"], NONE),
                text_or(&status["nominatedNodeName"], NONE),
                format_readiness_gates(object)
            ])
        }
        "Service" => json!([
            name,
            text(&spec["type"]),
            text_or(first(&spec["clusterIPs"], &spec["clusterIP"]), NONE),
            format_external_address(object),
            or_none(format_service_ports(&spec["ports"])),
            age,
            format_labels(&spec["selector"])
        ]),
        "Endpoints" => json!([name, format_endpoints(&object["subsets"]), age]),
        "EndpointSlice" => {
            let ports = items(&object["ports"]).map(|port| match port["port"].as_i64() {
                Some(number) => number.to_string(),
                None => text_or(&port["name"], "*").to_owned(),
            });
            let endpoints = items(&object["endpoints"]).flat_map(|endpoint| items(&endpoint["addresses"]));
            let addresses = endpoints.map(|address| text(address).to_owned());
            json!([
                name,
                text(&object["addressType"]),
                limit_list(ports, UNSET),
                limit_list(addresses, UNSET),
                age
            ])
        }
        "PersistentVolumeClaim" => claim_cells(object, age),
        "Node" => node_cells(object, age),
        "Lease" => json!([name, text(&spec["holderIdentity"]), age]),
        "RoleBinding" | "ClusterRoleBinding" => {
            let role = format!(
                "{}/{}",
                text(&object["roleRef"]["kind"]),
                text(&object["roleRef"]["name"])
            );
            let subjects = |kind: &str| {
                let of_kind = items(&object["subjects"]).filter(|subject| subject["kind"] == kind);
                let names = of_kind.map(|subject| match kind {
                    "ServiceAccount" => format!("{}/{}", text(&subject["namespace"]), text(&subject["name"])),
                    _ => text(&subject["name"]).to_owned(),
                });
                names.collect::<Vec<_>>().join(", ")
            };
            json!([
                name,
                role,
                age,
                subjects("User"),
                subjects("Group"),
                subjects("ServiceAccount")
            ])
        }
        "Deployment" => json!([
            name,
            ready(),
            count(&status["updatedReplicas"]),
            count(&status["availableReplicas"]),
            age,
            containers(template),
            images(template),
            format_selector(&spec["selector"], "")
        ]),
        "StatefulSet" => json!([name, ready(), age, containers(template), images(template)]),
        "DaemonSet" => json!([
            name,
            count(&status["desiredNumberScheduled"]),
            count(&status["currentNumberScheduled"]),
            count(&status["numberReady"]),
            count(&status["updatedNumberScheduled"]),
            count(&status["numberAvailable"]),
            format_labels(&template["nodeSelector"]),
            age,
            containers(template),
            images(template),
            selector()
        ]),
        "ReplicaSet" => json!([
            name,
            count(&spec["replicas"]),
            count(&status["replicas"]),
            count(&status["readyReplicas"]),
            age,
            containers(template),
            images(template),
            selector()
        ]),
        "Job" => json!([
            name,
            summarize_job(object),
            format_completions(object),
            format_job_duration(status, now),
            age,
            containers(template),
            images(template),
            selector()
        ]),
        "Ingress" => {
            let class = text_or(&spec["ingressClassName"], NONE);
            let ports = if size(&spec["tls"]) > 0 { "80, 443" } else { "80" };
            json!([
                name,
                class,
                format_hosts(&spec["rules"]),
                format_load_balancer(status),
                ports,
                age
            ])
        }
        "NetworkPolicy" => json!([name, format_selector(&spec["podSelector"], NONE), age]),
        "PodDisruptionBudget" => {
            let bound = |value: &Value| match value {
                Value::Null => "N/A".to_owned(),
                Value::String(percent) => percent.clone(),
                number => number.to_string(),
            };
            json!([
                name,
                bound(&spec["minAvailable"]),
                bound(&spec["maxUnavailable"]),
                count(&status["disruptionsAllowed"]),
                age
            ])
        }
        _ => json!([name, metadata["creationTimestamp"]]),
    };
    match cells {
        Value::Array(cells) => cells,
        _ => Vec::new(),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn text_or<'a>(value: &'a Value, absent: &'a str) -> &'a str {
    value.as_str().filter(|text| !text.is_empty()).unwrap_or(absent)
}

fn or_none(text: String) -> String {
    if text.is_empty() { NONE.into() } else { text }
}

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn size(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The first item of a list, or another value.
fn first<'a>(list: &'a Value, otherwise: &'a Value) -> &'a Value {
    list.get(0).unwrap_or(otherwise)
}

fn parse_time(time: &Value) -> Option<Timestamp> {
    time.as_str()?.parse().ok()
}

fn age(time: &Value, now: Timestamp) -> String {
    parse_time(time).map_or_else(
        || UNKNOWN.into(),
        |then| format_age(now.as_second() - then.as_second()),
    )
}

fn join(values: impl Iterator<Item = String>) -> String {
    values.collect::<Vec<_>>().join(",")
}

fn containers(pod: &Value) -> String {
    join(items(&pod["containers"]).map(|container| text(&container["name"]).to_owned()))
}

fn images(pod: &Value) -> String {
    join(items(&pod["containers"]).map(|container| text(&container["image"]).to_owned()))
}

fn has_condition(status: &Value, kind: &str) -> bool {
    items(&status["conditions"]).any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// The first values of a list, and the number of the others.
fn limit_list(values: impl Iterator<Item = String>, empty: &str) -> String {
    let values: Vec<_> = values.collect();
    let shown = values[..values.len().min(MAX_LISTED)].join(",");
    match values.len() {
        0 => empty.into(),
        all if all > MAX_LISTED => format!("{shown} + {} more...", all - MAX_LISTED),
        _ => shown,
    }
}

fn format_labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let sorted: BTreeMap<_, _> = pairs.collect();
    or_none(join(
        sorted
            .into_iter()
            .map(|(key, value)| format!("{key}={}", text(value))),
    ))
}

/// A label selector as text, its requirements in order of their keys.
fn format_selector(selector: &Value, empty: &str) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut requirements: Vec<(String, String)> = labels
        .map(|(key, value)| (key.clone(), format!("{key}={}", text(value))))
        .collect();
    for expression in items(&selector["matchExpressions"]) {
        let key = text(&expression["key"]);
        let values: BTreeSet<_> = items(&expression["values"]).map(text).collect();
        let values = values.into_iter().collect::<Vec<_>>().join(",");
        let requirement = match text(&expression["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        requirements.push((key.to_owned(), requirement));
    }
    requirements.sort_by(|a, b| a.0.cmp(&b.0));
    match requirements.is_empty() {
        true => empty.into(),
        false => join(requirements.into_iter().map(|(_, requirement)| requirement)),
    }
}

fn event_cells(event: &Value, now: Timestamp) -> Value {
    // The older kind and that of events.k8s.io name the same fields differently.
    let either = |older: &str, newer: &str| match &event[older] {
        Value::Null => event[newer].clone(),
        found => found.clone(),
    };
    let object = either("involvedObject", "regarding");
    let kind = text(&object["kind"]).to_lowercase();
    let target = match text(&object["name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let since = |time: &Value, otherwise: String| match parse_time(time) {
        Some(_) => age(time, now),
        None => otherwise,
    };
    let first_seen = since(
        &either("firstTimestamp", "deprecatedFirstTimestamp"),
        age(&event["eventTime"], now),
    );
    let mut last_seen = since(
        &either("lastTimestamp", "deprecatedLastTimestamp"),
        first_seen.clone(),
    );
    let mut times = count(&either("count", "deprecatedCount"));
    if event["series"].is_object() {
        last_seen = age(&event["series"]["lastObservedTime"], now);
        times = count(&event["series"]["count"]);
    } else if times == 0 {
        times = 1;
    }
    let source = either("source", "deprecatedSource");
    let component = text_or(
        &source["component"],
        text(&either("reportingComponent", "reportingController")),
    )
    .to_owned();
    let instance = text_or(&source["host"], text(&event["reportingInstance"])).to_owned();
    let source = match &*instance {
        "" => component,
        instance => format!("{component}, {instance}"),
    };
    json!([
        last_seen,
        text(&event["type"]),
        text(&event["reason"]),
        target,
        text(&object["fieldPath"]),
        source,
        text(&either("message", "note")).trim(),
        first_seen,
        times,
        event["metadata"]["name"]
    ])
}

/// The ready containers, the reason that stands for the status, and the restarts of a pod.
fn summarize_pod(pod: &Value, now: Timestamp) -> (String, String, String) {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let restartable: BTreeSet<&str> = items(&spec["initContainers"])
        .filter(|container| container["restartPolicy"] == "Always")
        .map(|container| text(&container["name"]))
        .collect();
    let total = size(&spec["containers"]) + restartable.len();
    let mut reason = text_or(&status["reason"], text(&status["phase"])).to_owned();
    let is_gated =
        |condition: &Value| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated";
    if items(&status["conditions"]).any(is_gated) {
        reason = "SchedulingGated".into();
    }
    let (mut ready, mut initializing) = (0, false);
    let (mut restarts, mut last_restart) = (0, None);
    let mut restarts_beside = (0, None);
    for (at, container) in items(&status["initContainerStatuses"]).enumerate() {
        let is_restartable = restartable.contains(text(&container["name"]));
        let ended = parse_time(&container["lastState"]["terminated"]["finishedAt"]);
        restarts += count(&container["restartCount"]);
        last_restart = last_restart.max(ended);
        if is_restartable {
            restarts_beside.0 += count(&container["restartCount"]);
            restarts_beside.1 = restarts_beside.1.max(ended);
        }
        let (terminated, waiting) = (&container["state"]["terminated"], &container["state"]["waiting"]);
        if terminated.is_object() && count(&terminated["exitCode"]) == 0 {
            continue;
        }
        if is_restartable && container["started"] == true {
            ready += usize::from(container["ready"] == true);
            continue;
        }
        initializing = true;
        reason = match text(&waiting["reason"]) {
            _ if terminated.is_object() => format!("Init:{}", format_termination(terminated)),
            "" | "PodInitializing" => format!("Init:{at}/{}", size(&spec["initContainers"])),
            waiting => format!("Init:{waiting}"),
        };
        break;
    }
    if !initializing || has_condition(status, "Initialized") {
        (restarts, last_restart) = restarts_beside;
        let mut has_running = false;
        for container in items(&status["containerStatuses"])
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            restarts += count(&container["restartCount"]);
            last_restart = last_restart.max(parse_time(&container["lastState"]["terminated"]["finishedAt"]));
            let state = &container["state"];
            match text(&state["waiting"]["reason"]) {
                "" if state["terminated"].is_object() => reason = format_termination(&state["terminated"]),
                "" if container["ready"] == true && state["running"].is_object() => {
                    has_running = true;
                    ready += 1;
                }
                "" => {}
                waiting => reason = waiting.into(),
            }
        }
        if reason == "Completed" && has_running {
            reason = if has_condition(status, "Ready") {
                "Running"
            } else {
                "NotReady"
            }
            .into();
        }
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        let is_over = matches!(text(&status["phase"]), "Succeeded" | "Failed");
        if status["reason"] == "NodeLost" {
            reason = "Unknown".into();
        } else if !is_over {
            reason = "Terminating".into();
        }
    }
    let restarts = match last_restart {
        Some(last) if restarts > 0 => {
            format!(
                "{restarts} ({} ago)",
                format_age(now.as_second() - last.as_second())
            )
        }
        _ => restarts.to_string(),
    };
    (format!("{ready}/{total}"), reason, restarts)
}

fn format_termination(terminated: &Value) -> String {
    match (text(&terminated["reason"]), count(&terminated["signal"])) {
        ("", 0) => format!("ExitCode:{}", count(&terminated["exitCode"])),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.into(),
    }
}

fn format_readiness_gates(pod: &Value) -> String {
    let gates = size(&pod["spec"]["readinessGates"]);
    let is_true = |gate: &&Value| has_condition(&pod["status"], text(&gate["conditionType"]));
    match gates {
        0 => NONE.into(),
        _ => format!(
            "{}/{gates}",
            items(&pod["spec"]["readinessGates"]).filter(is_true).count()
        ),
    }
}

fn format_service_ports(ports: &Value) -> String {
    join(items(ports).map(|port| {
        let (number, protocol) = (count(&port["port"]), text(&port["protocol"]));
        match count(&port["nodePort"]) {
            0 => format!("{number}/{protocol}"),
            node_port => format!("{number}:{node_port}/{protocol}"),
        }
    }))
}

fn format_external_address(service: &Value) -> String {
    let spec = &service["spec"];
    let external = join(items(&spec["externalIPs"]).map(|address| text(address).to_owned()));
    match text(&spec["type"]) {
        "LoadBalancer" => {
            let balanced = format_load_balancer(&service["status"]);
            let all = [balanced, external]
                .into_iter()
                .filter(|addresses| !addresses.is_empty());
            match join(all) {
                none if none.is_empty() => "<pending>".into(),
                all => all,
            }
        }
        "ExternalName" => text(&spec["externalName"]).into(),
        _ => or_none(external),
    }
}

/// The addresses of a load balancer, sorted.
fn format_load_balancer(status: &Value) -> String {
    let addresses = items(&status["loadBalancer"]["ingress"]);
    let addresses = addresses.map(|address| text_or(&address["ip"], text(&address["hostname"])));
    let sorted: BTreeSet<_> = addresses.filter(|address| !address.is_empty()).collect();
    sorted.into_iter().collect::<Vec<_>>().join(",")
}

fn format_endpoints(subsets: &Value) -> String {
    let addresses = items(subsets).flat_map(|subset| {
        let ports: Vec<_> = items(&subset["ports"]).map(|port| count(&port["port"])).collect();
        let addresses = items(&subset["addresses"]).map(|address| text(&address["ip"]));
        match ports.is_empty() {
            true => addresses.map(str::to_owned).collect::<Vec<_>>(),
            false => {
                let addresses: Vec<_> = addresses.collect();
                let of_port = |port: &i64| {
                    addresses
                        .iter()
                        .map(|address| join_host_port(address, *port))
                        .collect::<Vec<_>>()
                };
                ports.iter().flat_map(of_port).collect()
            }
        }
    });
    limit_list(addresses, NONE)
}

fn join_host_port(host: &str, port: i64) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

fn format_hosts(rules: &Value) -> String {
    let hosts: Vec<_> = items(rules)
        .map(|rule| text(&rule["host"]))
        .filter(|host| !host.is_empty())
        .collect();
    let shown = hosts[..hosts.len().min(MAX_LISTED)].join(",");
    match (hosts.is_empty(), size(rules)) {
        (true, _) => "*".into(),
        (false, all) if hosts.len() > MAX_LISTED => format!("{shown} + {} more...", all - MAX_LISTED),
        _ => shown,
    }
}

fn claim_cells(claim: &Value, age: String) -> Value {
    let (metadata, spec, status) = (&claim["metadata"], &claim["spec"], &claim["status"]);
    let phase = match metadata["deletionTimestamp"].is_null() {
        true => text(&status["phase"]),
        false => "Terminating",
    };
    let volume = text(&spec["volumeName"]);
    let (mut capacity, mut modes) = ("", String::new());
    if !volume.is_empty() {
        capacity = text(&status["capacity"]["storage"]);
        let known = [
            ("ReadWriteOnce", "RWO"),
            ("ReadOnlyMany", "ROX"),
            ("ReadWriteMany", "RWX"),
            ("ReadWriteOncePod", "RWOP"),
        ];
        let has = |mode: &str| items(&status["accessModes"]).any(|found| found == mode);
        modes = join(
            known
                .iter()
                .filter(|(mode, _)| has(mode))
                .map(|(_, short)| (*short).to_owned()),
        );
    }
    let class = &metadata["annotations"]["volume.beta.kubernetes.io/storage-class"];
    let class = text_or(class, text(&spec["storageClassName"]));
    let attributes = text_or(&spec["volumeAttributesClassName"], UNSET);
    json!([
        metadata["name"],
        phase,
        volume,
        capacity,
        modes,
        class,
        attributes,
        age,
        text_or(&spec["volumeMode"], UNSET)
    ])
}

fn node_cells(node: &Value, age: String) -> Value {
    let (metadata, spec, status) = (&node["metadata"], &node["spec"], &node["status"]);
    let ready = items(&status["conditions"]).find(|condition| condition["type"] == "Ready");
    let mut state = match ready {
        Some(ready) if ready["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if spec["unschedulable"] == true {
        state += ",SchedulingDisabled";
    }
    let none = Map::new();
    let labels = metadata["labels"].as_object().unwrap_or(&none).iter();
    let roles: BTreeSet<&str> = labels
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) if !role.is_empty() => Some(role),
                _ if key == "kubernetes.io/role" => value.as_str().filter(|role| !role.is_empty()),
                _ => None,
            },
        )
        .collect();
    let roles = or_none(roles.into_iter().collect::<Vec<_>>().join(","));
    let address = |kind: &str| {
        let found = items(&status["addresses"]).find(|address| address["type"] == kind);
        found.map_or(NONE, |address| text(&address["address"]))
    };
    let info = &status["nodeInfo"];
    json!([
        metadata["name"],
        state,
        roles,
        age,
        text(&info["kubeletVersion"]),
        address("InternalIP"),
        address("ExternalIP"),
        text_or(&info["osImage"], UNKNOWN),
        text_or(&info["kernelVersion"], UNKNOWN),
        text_or(&info["containerRuntimeVersion"], UNKNOWN)
    ])
}

fn summarize_job(job: &Value) -> &'static str {
    let status = &job["status"];
    for (condition, state) in [("Complete", "Complete"), ("Failed", "Failed")] {
        if has_condition(status, condition) {
            return state;
        }
    }
    if !job["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating";
    }
    let states = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
    states
        .into_iter()
        .find(|state| has_condition(status, state))
        .unwrap_or("Running")
}

fn format_completions(job: &Value) -> String {
    let succeeded = count(&job["status"]["succeeded"]);
    match (
        job["spec"]["completions"].as_i64(),
        count(&job["spec"]["parallelism"]),
    ) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn format_job_duration(status: &Value, now: Timestamp) -> String {
    let Some(started) = parse_time(&status["startTime"]) else {
        return String::new();
    };
    let ended = parse_time(&status["completionTime"]).unwrap_or(now);
    format_age(ended.as_second() - started.as_second())
}
