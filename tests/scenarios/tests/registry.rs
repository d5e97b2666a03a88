//! Components in a real docker-registry: push, sign, verify, pull and cache.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use ostler::testing::{
    oci::{ComponentStore, Digest, OciReference, PullError, PullLimits, PulledComponent, RegistryAuth},
    signature::{PublicKey, SignaturePolicy, SigningKey},
};
use ostler_test_harness::{
    process::host_binary,
    read_component as component,
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, RegistryProcess},
    scenario,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const GREETING_COMPONENT: &str = "examples/greeting";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// A working directory with a component, keys and the command line.
struct Workspace {
    directory: TempDir,
}

impl Workspace {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let workspace = Self { directory };
        workspace.write("greeting.wasm", component(GREETING_COMPONENT));
        for (i, name) in ["ours", "theirs"].iter().enumerate() {
            let pem = private_key_pem(i as u8 + 1);
            let public = SigningKey::from_pem(&pem).expect("a key").public_key();
            workspace.write(&format!("{name}.key"), pem);
            workspace.write(&format!("{name}.pub"), public_key_pem(i as u8 + 1));
            let read = std::fs::read_to_string(workspace.at(&format!("{name}.pub"))).expect("written");
            assert_eq!(PublicKey::from_pem(&read), Ok(public));
        }
        workspace
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.at(name), bytes).expect("written");
    }

    fn public(&self, name: &str) -> PublicKey {
        let pem = std::fs::read_to_string(self.at(&format!("{name}.pub"))).expect("a key");
        PublicKey::from_pem(&pem).expect("a key")
    }

    fn ostler(&self, arguments: &[&str]) -> Output {
        Command::new(host_binary())
            .arg("plugin")
            .args(arguments)
            .current_dir(self.directory.path())
            .env("DOCKER_CONFIG", self.directory.path())
            .env("NO_COLOR", "1")
            .output()
            .expect("ostler runs")
    }

    /// Runs a command that must succeed, and parses its JSON output.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ostler(&[arguments, &["-o", "json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Runs a command that must fail, and returns its error.
    fn expect_failure(&self, arguments: &[&str]) -> String {
        let output = self.ostler(arguments);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{arguments:?}: {}",
            stderr(&output)
        );
        stderr(&output)
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn encode_pem(label: &str, prefix: &[u8], key: &[u8]) -> String {
    let body = BASE64_STANDARD.encode([prefix, key].concat());
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

/// An Ed25519 private key whose 32 seed bytes are `seed`, in PKCS#8.
fn private_key_pem(seed: u8) -> String {
    encode_pem(
        "PRIVATE KEY",
        b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20",
        &[seed; 32],
    )
}

/// The public key of the same seed (derived as in RFC 8032).
fn public_key_pem(seed: u8) -> String {
    let hex = match seed {
        1 => "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
        _ => "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394",
    };
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal");
    encode_pem(
        "PUBLIC KEY",
        b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00",
        &(0..32).map(byte).collect::<Vec<_>>(),
    )
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn store(cache: &Path) -> ComponentStore {
    ComponentStore::new(Some(cache.to_owned()), PullLimits::default())
}

async fn pull(
    store: &ComponentStore,
    reference: &str,
    policy: &SignaturePolicy,
) -> Result<PulledComponent, PullError> {
    let reference: OciReference = reference.parse().expect("a reference");
    store
        .pull_component(&reference, &RegistryAuth::anonymous(), policy)
        .await
}

fn http() -> reqwest::Client {
    // Fails if another test has installed a provider, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// Uploads a manifest and its blobs directly, and returns the reference.
async fn upload_manifest(
    registry: &RegistryProcess,
    name: &str,
    manifest: &Value,
    blobs: &[&[u8]],
) -> String {
    let http = http();
    let base = format!("http://{}/v2/{name}", registry.address());
    for bytes in blobs {
        let start = http
            .post(format!("{base}/blobs/uploads/"))
            .send()
            .await
            .expect("an answer");
        let location = start.headers()["location"].to_str().expect("a URL").to_owned();
        let url = format!("{location}&digest={}", Digest::of_bytes(bytes));
        let put = http
            .put(url)
            .body(bytes.to_vec())
            .send()
            .await
            .expect("an answer");
        assert!(put.status().is_success(), "{put:?}");
    }
    let (bytes, kind) = (
        manifest.to_string(),
        manifest["mediaType"].as_str().unwrap_or(MANIFEST_TYPE).to_owned(),
    );
    let digest = Digest::of_bytes(bytes.as_bytes());
    let put = http
        .put(format!("{base}/manifests/{digest}"))
        .header("content-type", kind)
        .body(bytes);
    let put = put.send().await.expect("an answer");
    assert!(
        put.status().is_success(),
        "{}",
        put.text().await.unwrap_or_default()
    );
    format!("{}/{name}@{digest}", registry.address())
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": Digest::of_bytes(bytes).to_string(), "size": bytes.len()})
}

#[scenario(embedded = "it needs a registry, and no API server")]
fn push_signs_and_verify_accepts_the_key() {
    let (workspace, registry) = (Workspace::new(), RegistryProcess::start_public());
    let tag = format!("{}/plugins/greeting:0.1.0", registry.address());
    let pushed = workspace.json(&["push", "greeting.wasm", &tag, "--sign", "ours.key"]);
    let (pinned, digest) = (text(&pushed["reference"]), text(&pushed["digest"]));
    assert_eq!(pinned, format!("{tag}@{digest}"));
    assert_eq!(
        (text(&pushed["name"]), &pushed["existed"]),
        ("greeting", &json!(false))
    );
    let ours = workspace.public("ours").fingerprint().to_string();
    assert_eq!(text(&pushed["signedBy"]), ours);
    // A repeated push changes nothing, and prints only the pinned reference to stdout, for scripts.
    let again = workspace.ostler(&["push", "greeting.wasm", &tag, "--sign", "ours.key"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout).trim(), pinned);
    assert!(stderr(&again).contains("was there already"), "{}", stderr(&again));

    let verified = workspace.json(&["verify", pinned, "--key", "ours.pub"]);
    assert_eq!(
        (&verified["verified"], &verified["fits"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(verified["signedBy"], json!([ours]));
    assert_eq!(text(&verified["digest"]), digest);
    assert_eq!(verified["size"], component(GREETING_COMPONENT).len());
    let wrong = workspace.expect_failure(&["verify", pinned, "--key", "theirs.pub"]);
    assert!(
        wrong.contains("none by a key of the policy") && wrong.contains(digest),
        "{wrong}"
    );
    let any = workspace.json(&["verify", &tag, "--key", "theirs.pub", "--key", "ours.pub"]);
    assert_eq!(any["signedBy"], json!([ours]));
    let all = [
        "verify",
        pinned,
        "--key",
        "theirs.pub",
        "--key",
        "ours.pub",
        "--require-all",
    ];
    let missing = workspace.expect_failure(&all);
    assert!(missing.contains("must be signed by every key"), "{missing}");
    // The second signature is added beside the first.
    workspace.json(&["push", "greeting.wasm", &tag, "--sign", "theirs.key"]);
    assert_eq!(workspace.json(&all)["verified"], json!(true));
}

#[scenario(embedded = "it needs a registry, and no API server")]
fn push_and_verify_errors_name_the_cause() {
    let (workspace, registry) = (Workspace::new(), RegistryProcess::start_public());
    let tag = format!("{}/plugins/greeting:1", registry.address());
    workspace.write("module.wasm", b"\0asm\x01\0\0\0");
    for (arguments, expected) in [
        (vec!["push", "module.wasm", &tag], "module.wasm: a core module"),
        (
            vec!["push", "nowhere.wasm", &tag],
            "reading the component nowhere.wasm",
        ),
        (
            vec!["push", "greeting.wasm", &tag, "--sign", "ours.pub"],
            "the key ours.pub: no PEM PRIVATE KEY",
        ),
        (vec!["verify", &tag, "--key", "ours.pub"], "has no tag 1"),
        (
            vec!["verify", "greeting.wasm", "--key", "ours.pub"],
            "give --signature",
        ),
        (vec!["verify", "module.wasm"], "a core module"),
        (
            vec!["verify", "nowhere.wasm"],
            "there is no file nowhere.wasm: \"nowhere.wasm\" is no reference",
        ),
    ] {
        let error = workspace.expect_failure(&arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    // A file and its detached signature, as written by `cosign sign-blob`.
    let key = SigningKey::from_pem(&private_key_pem(1)).expect("a key");
    workspace.write(
        "greeting.sig",
        BASE64_STANDARD.encode(key.sign_message(&component(GREETING_COMPONENT)).expect("signed")),
    );
    let file = ["verify", "greeting.wasm", "--signature", "greeting.sig", "--key"];
    assert_eq!(
        workspace.json(&[&file[..], &["ours.pub"]].concat())["verified"],
        json!(true)
    );
    let wrong = workspace.expect_failure(&[&file[..], &["theirs.pub"]].concat());
    assert!(wrong.contains("is not its signature"), "{wrong}");
}

#[scenario(embedded = "it needs a registry, and no API server")]
fn private_registry_needs_credentials() {
    let (workspace, registry) = (Workspace::new(), RegistryProcess::start_private());
    let tag = format!("{}/plugins/greeting:1", registry.address());
    let error = workspace.expect_failure(&["push", "greeting.wasm", &tag]);
    assert!(error.contains("refuses access without credentials"), "{error}");
    let login = |password: &str| {
        let auth = BASE64_STANDARD.encode(format!("{REGISTRY_USER}:{password}"));
        workspace.write(
            "config.json",
            json!({"auths": {registry.address(): {"auth": auth}}}).to_string(),
        );
    };
    login("not-the-passphrase");
    let error = workspace.expect_failure(&["push", "greeting.wasm", &tag]);
    assert!(error.contains("refuses the user \"robot\""), "{error}");
    assert!(!error.contains("not-the-passphrase"), "{error}");
    login(REGISTRY_PASSWORD);
    let pushed = workspace.json(&["push", "greeting.wasm", &tag, "--sign", "ours.key"]);
    let verified = workspace.json(&["verify", text(&pushed["reference"]), "--key", "ours.pub"]);
    assert_eq!(verified["verified"], json!(true));
}

#[scenario(embedded = "it needs a registry, and no API server")]
async fn pull_uses_the_cache_while_the_registry_is_down() {
    let (workspace, mut registry) = (Workspace::new(), RegistryProcess::start_public());
    let tag = format!("{}/plugins/greeting:1", registry.address());
    let pushed = workspace.json(&["push", "greeting.wasm", &tag, "--sign", "ours.key"]);
    let pinned = text(&pushed["reference"]);
    let ours = SignaturePolicy::any_of(vec![workspace.public("ours")]);
    let theirs = SignaturePolicy::any_of(vec![workspace.public("theirs")]);
    let cache = workspace.at("cache");
    let first = pull(&store(&cache), pinned, &ours).await.expect("pulled");
    assert_eq!(
        (first.cached, &first.wasm),
        (false, &component(GREETING_COMPONENT))
    );
    let by_tag = pull(&store(&cache).with_tags(), &tag, &ours)
        .await
        .expect("pulled");
    assert_eq!((by_tag.offline, by_tag.cached), (None, true));

    registry.stop();
    let kept = pull(&store(&cache), pinned, &ours).await.expect("from the cache");
    assert_eq!(
        (kept.cached, kept.wasm, kept.signers),
        (true, first.wasm, first.signers)
    );
    let by_tag = pull(&store(&cache).with_tags(), &tag, &ours)
        .await
        .expect("from the cache");
    let warning = by_tag.offline.expect("a warning");
    assert!(warning.contains(registry.address()), "{warning}");
    assert_eq!(by_tag.digest, text(&pushed["digest"]));
    // A cached signature of another key does not satisfy the policy.
    let error = pull(&store(&cache), pinned, &theirs)
        .await
        .expect_err("not theirs");
    assert!(error.is_transient(), "{error}");
    let permissive = pull(&store(&cache), pinned, &theirs.permissive())
        .await
        .expect("from the cache");
    let unknown = permissive.unsigned.expect("a warning").to_string();
    assert!(unknown.contains("could not be found out"), "{unknown}");
    let error = pull(&store(&workspace.at("empty")), pinned, &ours)
        .await
        .expect_err("nothing there");
    assert_eq!(error.reason(), "PullFailed");
    // A broken cache entry is ignored, and replaced once the registry is up again.
    let layer = cache
        .join("blobs/sha256")
        .join(Digest::of_bytes(&component(GREETING_COMPONENT)).hex());
    std::fs::write(&layer, b"\0asm\x0d\0\x01\0").expect("broken");
    let error = pull(&store(&cache), pinned, &ours).await.expect_err("broken");
    assert_eq!(error.reason(), "PullFailed");
    registry.restart();
    let restored = pull(&store(&cache), pinned, &ours).await.expect("pulled again");
    assert_eq!(
        (restored.cached, restored.wasm),
        (false, component(GREETING_COMPONENT))
    );
}

#[scenario(embedded = "it needs a registry, and no API server")]
async fn tampered_blob_is_refused() {
    let (workspace, registry) = (Workspace::new(), RegistryProcess::start_public());
    let tag = format!("{}/plugins/greeting:1", registry.address());
    let pushed = workspace.json(&["push", "greeting.wasm", &tag]);
    let wasm = Digest::of_bytes(&component(GREETING_COMPONENT));
    for digest in [wasm.as_str(), text(&pushed["digest"])] {
        let file = registry.blob_path(digest);
        let good = std::fs::read(&file).expect("on its disk");
        let mut bad = good.clone();
        *bad.last_mut().expect("not empty") ^= 1;
        std::fs::write(&file, &bad).expect("changed");
        let error = pull(
            &store(&workspace.at("cache")),
            text(&pushed["reference"]),
            &SignaturePolicy::none(),
        )
        .await;
        let error = error.expect_err("changed");
        // docker-registry itself validates manifests, so their reason varies.
        let expected = ["DigestMismatch", "PullFailed", "NotFound"];
        assert!(expected.contains(&error.reason()), "{error}");
        if digest == wasm.as_str() {
            assert_eq!(error.reason(), "DigestMismatch", "{error}");
        }
        std::fs::write(&file, good).expect("restored");
    }
    let pulled = pull(
        &store(&workspace.at("cache")),
        text(&pushed["reference"]),
        &SignaturePolicy::none(),
    )
    .await;
    assert!(!pulled.expect("restored").cached);
}

#[scenario(embedded = "it needs a registry, and no API server")]
async fn copied_signature_of_another_component_is_refused() {
    let (workspace, registry) = (Workspace::new(), RegistryProcess::start_public());
    let place = format!("{}/plugins/greeting", registry.address());
    let good = workspace.json(&[
        "push",
        "greeting.wasm",
        &format!("{place}:good"),
        "--sign",
        "ours.key",
    ]);
    workspace.write("probe.wasm", component("tests/probe"));
    let evil = workspace.json(&["push", "probe.wasm", &format!("{place}:evil")]);
    let ours = SignaturePolicy::any_of(vec![workspace.public("ours")]);
    let pull = async || pull(&store(&workspace.at("cache")), text(&evil["reference"]), &ours).await;
    assert_eq!(pull().await.expect_err("not signed").reason(), "SignatureMissing");
    // An attacker with write access to the registry copies the signature.
    let sig = |pushed: &Value| {
        let digest = text(&pushed["digest"]).replace(':', "-");
        format!(
            "http://{}/v2/plugins/greeting/manifests/{digest}.sig",
            registry.address()
        )
    };
    let http = http();
    let copied = http
        .get(sig(&good))
        .header("accept", MANIFEST_TYPE)
        .send()
        .await
        .expect("an answer");
    let copied = copied.bytes().await.expect("a manifest");
    let put = http
        .put(sig(&evil))
        .header("content-type", MANIFEST_TYPE)
        .body(copied);
    assert!(put.send().await.expect("an answer").status().is_success());
    let error = pull().await.expect_err("copied");
    assert_eq!(error.reason(), "InvalidSignature");
    assert!(
        error
            .to_string()
            .contains(&format!("is of {}", text(&good["digest"]))),
        "{error}"
    );
}

#[scenario(embedded = "it needs a registry, and no API server")]
async fn artifact_of_another_type_is_named() {
    let (workspace, registry) = (Workspace::new(), RegistryProcess::start_public());
    let blobs: [&[u8]; 2] = [b"{}", b"a layer"];
    let artifact = |config: &str, layer: &str| {
        json!({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": descriptor(config, blobs[0]),
            "layers": [descriptor(layer, blobs[1])]})
    };
    let image = artifact(
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.oci.image.layer.v1.tar+gzip",
    );
    let chart = artifact(
        "application/vnd.cncf.helm.config.v1+json",
        "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
    );
    let text = artifact("application/vnd.wasm.config.v0+json", "text/plain");
    for (manifest, expected) in [
        (image, "a container image"),
        (chart, "a Helm chart"),
        (text, "a layer of type \"text/plain\""),
    ] {
        let reference = upload_manifest(&registry, "other/thing", &manifest, &blobs).await;
        let error = pull(
            &store(&workspace.at("cache")),
            &reference,
            &SignaturePolicy::none(),
        )
        .await
        .expect_err(expected);
        assert_eq!(error.reason(), "NotAComponent");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[scenario(embedded = "it needs a registry, and no API server")]
async fn pushed_artifact_follows_the_wasm_oci_layout() {
    let (workspace, registry) = (Workspace::new(), RegistryProcess::start_public());
    let tag = format!("{}/plugins/greeting:1", registry.address());
    let pushed = workspace.json(&["push", "greeting.wasm", &tag]);
    let base = format!("http://{}/v2/plugins/greeting", registry.address());
    let get = async |path: String| {
        let answer = http()
            .get(path)
            .header("accept", MANIFEST_TYPE)
            .send()
            .await
            .expect("an answer");
        serde_json::from_slice::<Value>(&answer.bytes().await.expect("a body")).expect("JSON")
    };
    let manifest = get(format!("{base}/manifests/1")).await;
    assert_eq!(text(&manifest["mediaType"]), MANIFEST_TYPE);
    assert_eq!(
        text(&manifest["config"]["mediaType"]),
        "application/vnd.wasm.config.v0+json"
    );
    assert_eq!(
        manifest["layers"],
        json!([descriptor("application/wasm", &component(GREETING_COMPONENT))])
    );
    let annotations = &manifest["annotations"];
    assert_eq!(text(&annotations["org.opencontainers.image.title"]), "greeting");
    assert_eq!(annotations["org.opencontainers.image.version"], pushed["version"]);
    let config = get(format!("{base}/blobs/{}", text(&manifest["config"]["digest"]))).await;
    assert_eq!(
        (text(&config["architecture"]), text(&config["os"])),
        ("wasm", "wasip2")
    );
    assert_eq!(
        config["layerDigests"],
        json!([Digest::of_bytes(&component(GREETING_COMPONENT)).to_string()])
    );
    let exports = config["component"]["exports"].as_array().expect("a list");
    assert!(
        exports
            .iter()
            .any(|e| text(e).starts_with("ostler:plugin/reconciler@")),
        "{exports:?}"
    );
}
