//! Attempts to access what the plugin may not. Each returns its results as short texts.

use ostler_sdk::{Encoding, Error, SecretKeyRef, Selection, Substitution, prelude::*, serde_json::Value};

use crate::{Hostile, config_map_object};

fn word(what: &str, result: Result<String, Error>) -> String {
    let came = match result {
        Ok(answer) => format!("ok {answer}"),
        Err(Error::Denied(_)) => "denied".into(),
        Err(Error::NotFound(_)) => "not-found".into(),
        Err(Error::Conflict(_)) => "conflict".into(),
        Err(Error::Invalid(_)) => "invalid".into(),
        Err(Error::Throttled(_)) => "throttled".into(),
        Err(Error::Unavailable(_)) => "unavailable".into(),
        Err(Error::NotReady(_)) => "not-ready".into(),
        Err(Error::LimitExceeded(_)) => "limit-exceeded".into(),
        Err(Error::Unsupported(_)) => "unsupported".into(),
    };
    format!("{what}: {came}")
}

fn seen(found: Option<Value>) -> String {
    found.map_or("absent".into(), |object| {
        object["kind"].as_str().unwrap_or("?").into()
    })
}

fn count(found: Vec<Value>) -> String {
    found.len().to_string()
}

fn all(namespace: Option<&str>) -> Selection<'_> {
    Selection {
        namespace,
        ..Selection::default()
    }
}

/// Reads and writes in a namespace that the plugin may not access.
pub fn trespass(ctx: &Context, object: &Hostile, target: &str) -> Vec<String> {
    let (config_map, secret) = (gvk("", "v1", "ConfigMap"), gvk("", "v1", "Secret"));
    let here = object.namespace();
    let itself = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": object.name(), "namespace": here}, "status": {"observedGeneration": 99}});
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {},
        "metadata": {"name": "adopted", "namespace": here,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "1"}]}});
    let shown = |answer: Value| answer["metadata"]["ownerReferences"].to_string();
    vec![
        word("get there", ctx.get_json(&config_map.clone().named(target, "kube-root-ca.crt")).map(seen)),
        word("list there", ctx.list_json(&config_map, &all(Some(target)), &[]).map(count)),
        word("list everywhere", ctx.list_json(&config_map, &all(None), &[]).map(count)),
        word("apply there", ctx.apply(&config_map_object(target, "planted", ""), true).and_then(|w| w.json()).map(|v| seen(Some(v)))),
        word("own there", ctx.apply_owned(&config_map_object(target, "planted", "")).and_then(|w| w.json()).map(|v| seen(Some(v)))),
        word("create there", ctx.create(&config_map_object(target, "planted", ""), false).and_then(|w| w.json()).map(|v| seen(Some(v)))),
        word("delete there", ctx.delete(&config_map.clone().named(target, "kube-root-ca.crt")).map(|()| String::new())),
        word("hold there", ctx.hold(&config_map.clone().named(target, "kube-root-ca.crt")).map(|()| String::new())),
        word("get Secret", ctx.get_json(&secret.clone().named(here, "treasure")).map(seen)),
        word("list Secrets", ctx.list_json(&secret, &all(Some(here)), &["metadata.name"]).map(count)),
        word(
            "apply Secret",
            ctx.apply(
                &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "treasure", "namespace": here}}),
                true,
            )
            .and_then(|w| w.json())
            .map(|v| v.to_string()),
        ),
        word("digest", ctx.secret_digest("treasure", "password").map(|d| d.unwrap_or_default())),
        word("write itself", ctx.apply(&itself, true).and_then(|w| w.json()).map(|v| seen(Some(v)))),
        word("adopt", ctx.apply(&owner, true).and_then(|w| w.json()).map(shown)),
    ]
}

/// Names that contain path segments or queries.
pub fn inject(ctx: &Context, here: &str, target: &str) -> Vec<String> {
    let config_map = gvk("", "v1", "ConfigMap");
    let names = [
        "../secrets/treasure",
        "x/../../secrets/treasure",
        "x?watch=true",
        "x#",
        "%2e%2e%2fsecrets%2ftreasure",
        "..",
        "x\r\nImpersonate-User: admin",
        "x y",
        "",
    ];
    let mut attempts = Vec::new();
    for name in names {
        attempts.push(word(
            "name",
            ctx.get_json(&config_map.clone().named(here, name)).map(seen),
        ));
        attempts.push(word(
            "delete",
            ctx.delete(&config_map.clone().named(here, name))
                .map(|()| String::new()),
        ));
        attempts.push(word(
            "apply",
            ctx.apply(&config_map_object(here, name, ""), true)
                .and_then(|w| w.json())
                .map(|v| seen(Some(v))),
        ));
        attempts.push(word(
            "hold",
            ctx.hold(&config_map.clone().named(here, name))
                .map(|()| String::new()),
        ));
        attempts.push(word(
            "upstream",
            ctx.upstream(name).get("/").send().map(|_| String::new()),
        ));
        attempts.push(word(
            "secret",
            ctx.secret_digest(name, "k").map(|_| String::new()),
        ));
    }
    let places = [
        format!("{target}/secrets?x="),
        format!("{target}/secrets#"),
        "..".into(),
        "a%2fb".into(),
    ];
    for place in &places {
        attempts.push(word(
            "namespace",
            ctx.get_json(&config_map.clone().named(place, "x")).map(seen),
        ));
        attempts.push(word(
            "list",
            ctx.list_json(&config_map, &all(Some(place)), &[]).map(count),
        ));
        attempts.push(word(
            "apply",
            ctx.apply(&config_map_object(place, "x", ""), true)
                .and_then(|w| w.json())
                .map(|v| seen(Some(v))),
        ));
    }
    for (group, version, kind) in [
        ("../../api/v1/namespaces/x/secrets?", "v1", "ConfigMap"),
        ("", "v1/secrets?x=", "ConfigMap"),
        ("", "..", "ConfigMap"),
        ("", "", ""),
        ("", "v1", "ConfigMap/status"),
        ("a b", "v1", "ConfigMap"),
    ] {
        let odd = gvk(group, version, kind);
        attempts.push(word(
            "kind",
            ctx.get_json(&odd.clone().named(here, "x")).map(seen),
        ));
        attempts.push(word(
            "list kind",
            ctx.list_json(&odd, &all(Some(here)), &[]).map(count),
        ));
    }
    attempts
}

/// Requests that smuggle a second request or another destination.
pub fn smuggle(ctx: &Context, upstream: &str) -> Vec<String> {
    let upstream = ctx.upstream(upstream);
    let status = |answer: ostler_sdk::Response| answer.status().to_string();
    let mut attempts = Vec::new();
    for (name, value) in [
        ("X-A", "b\r\nX-Injected: 1"),
        ("X-A\r\nX-Injected", "1"),
        ("Host", "elsewhere.example"),
        ("Authorization", "Bearer forged"),
        ("Cookie", "a=b"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "1000"),
        ("Connection", "upgrade"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("X-Original-URL", "/admin"),
        ("Proxy-Authorization", "x"),
        ("", "x"),
    ] {
        attempts.push(word(
            "header",
            upstream.get("/").header(name, value).send().map(status),
        ));
    }
    for path in [
        "/../admin",
        "/a/../../admin",
        "/%2e%2e/admin",
        "/..%2fadmin",
        "/a\r\nX-Injected: 1",
        "/a HTTP/1.1\r\nX-Injected: 1",
        "//elsewhere.example/",
        "http://elsewhere.example/",
        "@elsewhere.example/",
        ".elsewhere.example/",
        "\\\\elsewhere.example",
        "",
    ] {
        attempts.push(word("path", upstream.get(path).send().map(status)));
    }
    attempts.push(word("redirect", upstream.get("/redirect").send().map(status)));
    attempts
}

/// A secret sent to a server that echoes it.
pub fn exfiltrate(ctx: &Context, upstream: &str) -> Vec<String> {
    let upstream = ctx.upstream(upstream);
    let placeholder = "{{a-placeholder-of-mine}}";
    let mut attempts = Vec::new();
    for encoding in [
        Encoding::Plain,
        Encoding::JsonString,
        Encoding::Form,
        Encoding::Base64,
        Encoding::Xml,
    ] {
        let secret = SecretKeyRef::new("treasure", "password");
        let substitution = Substitution::key(placeholder, secret, encoding);
        let body = format!("v={placeholder}").into_bytes();
        let answer = upstream
            .post("/echo")
            .body("text/plain", body)
            .substitute(std::slice::from_ref(&substitution))
            .send();
        attempts.push(word("echo", answer.map(|a| a.text())));
    }
    let later = upstream.get("/last").send();
    attempts.push(word("later", later.map(|a| a.text())));
    attempts
}

/// Sends a body of placeholders that each stand for a large secret, and has a server repeat a short secret in a response, in which
/// each occurrence is redacted by a long placeholder.
pub fn expand(ctx: &Context, upstream: &str) {
    let upstream = ctx.upstream(upstream);
    let send = |path: &str, secret: &str, placeholder: &str, count: usize| {
        let secret = SecretKeyRef::new("treasure", secret);
        let substitution = Substitution::key(placeholder, secret, Encoding::Plain);
        let sent = upstream
            .post(path)
            .body("text/plain", placeholder.repeat(count).into_bytes())
            .substitute(&[substitution])
            .send();
        if let Err(error) = sent {
            ctx.info(&error.to_string());
        }
    };
    send("/echo", "large", "{{placeholder-1}}", 100_000);
    send("/repeat", "short", &"p".repeat(1024), 1);
}

/// Stores as much as possible in the per-object cache.
pub fn hoard(ctx: &Context) -> Vec<String> {
    (0..5)
        .map(|i| {
            word(
                "keep",
                ctx.cache_set(&i.to_string(), &vec![0; 30 << 10])
                    .map(|()| String::new()),
            )
        })
        .collect()
}

/// Many applies, each within the size limit.
pub fn bulks(ctx: &Context, here: &str) -> Vec<String> {
    let text = "x".repeat(512 << 10);
    (0..9)
        .map(|_| {
            word(
                "bulk",
                ctx.apply(&config_map_object(here, "..", &text), true)
                    .map(|_| String::new()),
            )
        })
        .collect()
}

/// Lists the same objects repeatedly.
pub fn list(ctx: &Context, here: &str) -> Vec<String> {
    let kind = gvk("", "v1", "ConfigMap");
    (0..10)
        .map(|_| {
            word(
                "list",
                ctx.list_json(&kind, &all(Some(here)), &["metadata.name"])
                    .map(count),
            )
        })
        .collect()
}

/// Holds every object.
pub fn hold(ctx: &Context, here: &str) -> Vec<String> {
    let kind = gvk("", "v1", "ConfigMap");
    let found = ctx.list_json(&kind, &all(Some(here)), &["metadata.name"]);
    let names = found.unwrap_or_default().into_iter();
    names
        .map(|o| {
            let name = o["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            word(
                "hold",
                ctx.hold(&kind.clone().named(here, &name)).map(|()| String::new()),
            )
        })
        .collect()
}

/// Subscribes to many streams.
pub fn subscribe(ctx: &Context, upstream: &str) -> Vec<String> {
    (0..20)
        .map(|i| {
            word(
                "follow",
                ctx.upstream(upstream)
                    .subscribe(format!("/{i}"), &[], &[])
                    .map(|()| String::new()),
            )
        })
        .collect()
}

/// Invalid checkpoints.
pub fn checkpoint(ctx: &Context) -> Vec<String> {
    vec![
        word(
            "large",
            ctx.checkpoint(&json!({"much": "x".repeat(1 << 20)}))
                .map(|()| String::new()),
        ),
        word("text", ctx.checkpoint(&"text").map(|()| String::new())),
        word(
            "forged",
            ctx.checkpoint(&json!({"conditions": [], "observedGeneration": 99}))
                .map(|()| String::new()),
        ),
    ]
}
