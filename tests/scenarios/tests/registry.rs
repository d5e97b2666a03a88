//! Components through the real docker-registry: pushed, signed, verified, pulled, kept.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use ostler::testing::{
    oci::{ComponentStore, Digest, PullError, PullLimits, PulledComponent, Reference, RegistryAuth},
    signature::{PublicKey, SignaturePolicy, SigningKey},
};
use ostler_test_harness::{
    process::host_binary,
    read_component as component,
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, Registry},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const GREETING: &str = "examples/greeting";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// What a person has at hand: a component, keys, the command line.
struct Desk {
    directory: TempDir,
}

impl Desk {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let desk = Self { directory };
        desk.write("greeting.wasm", component(GREETING));
        for (i, name) in ["ours", "theirs"].iter().enumerate() {
            let pem = private(i as u8 + 1);
            let public = SigningKey::from_pem(&pem).expect("a key").public_key();
            desk.write(&format!("{name}.key"), pem);
            desk.write(&format!("{name}.pub"), spki(i as u8 + 1));
            let read = std::fs::read_to_string(desk.at(&format!("{name}.pub"))).expect("written");
            assert_eq!(PublicKey::from_pem(&read), Ok(public));
        }
        desk
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

    /// What it prints, as JSON.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ostler(&[arguments, &["-o", "json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Why it fails.
    fn fails(&self, arguments: &[&str]) -> String {
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

fn pem(label: &str, prefix: &[u8], key: &[u8]) -> String {
    let body = BASE64_STANDARD.encode([prefix, key].concat());
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

/// An Ed25519 key made of this number, in PKCS#8.
fn private(seed: u8) -> String {
    pem(
        "PRIVATE KEY",
        b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20",
        &[seed; 32],
    )
}

/// Its public half (RFC 8032 says how it is found).
fn spki(seed: u8) -> String {
    let hex = match seed {
        1 => "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
        _ => "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394",
    };
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal");
    pem(
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
    let reference: Reference = reference.parse().expect("a reference");
    store
        .pull_component(&reference, &RegistryAuth::anonymous(), policy)
        .await
}

fn http() -> reqwest::Client {
    // Fails only when somebody was faster, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// Writes a manifest by hand, and gives its reference.
async fn put(registry: &Registry, name: &str, manifest: &Value, blobs: &[&[u8]]) -> String {
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
        manifest["mediaType"].as_str().unwrap_or(MANIFEST).to_owned(),
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

mod real {
    use super::*;

    #[test]
    #[ignore = "needs docker-registry: cargo xtask test real"]
    fn pushed_signed_and_verified_on_the_command_line() {
        let (desk, registry) = (Desk::new(), Registry::start_public());
        let tag = format!("{}/plugins/greeting:0.1.0", registry.address());
        let pushed = desk.json(&["push", "greeting.wasm", &tag, "--sign", "ours.key"]);
        let (pinned, digest) = (text(&pushed["reference"]), text(&pushed["digest"]));
        assert_eq!(pinned, format!("{tag}@{digest}"));
        assert_eq!(
            (text(&pushed["name"]), &pushed["existed"]),
            ("greeting", &json!(false))
        );
        let ours = desk.public("ours").fingerprint().to_string();
        assert_eq!(text(&pushed["signedBy"]), ours);
        // The same again is the same, and the one line on stdout is what scripts go on with.
        let again = desk.ostler(&["push", "greeting.wasm", &tag, "--sign", "ours.key"]);
        assert_eq!(String::from_utf8_lossy(&again.stdout).trim(), pinned);
        assert!(stderr(&again).contains("was there already"), "{}", stderr(&again));

        let verified = desk.json(&["verify", pinned, "--key", "ours.pub"]);
        assert_eq!(
            (&verified["verified"], &verified["fits"]),
            (&json!(true), &json!(true))
        );
        assert_eq!(verified["signedBy"], json!([ours]));
        assert_eq!(text(&verified["digest"]), digest);
        assert_eq!(verified["size"], component(GREETING).len());
        let wrong = desk.fails(&["verify", pinned, "--key", "theirs.pub"]);
        assert!(
            wrong.contains("none by a key of the policy") && wrong.contains(digest),
            "{wrong}"
        );
        let any = desk.json(&["verify", &tag, "--key", "theirs.pub", "--key", "ours.pub"]);
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
        let missing = desk.fails(&all);
        assert!(missing.contains("must be signed by every key"), "{missing}");
        // The other signs it, too, beside what is there.
        desk.json(&["push", "greeting.wasm", &tag, "--sign", "theirs.key"]);
        assert_eq!(desk.json(&all)["verified"], json!(true));
    }

    #[test]
    #[ignore = "needs docker-registry: cargo xtask test real"]
    fn what_can_not_be_pushed_or_verified_says_why() {
        let (desk, registry) = (Desk::new(), Registry::start_public());
        let tag = format!("{}/plugins/greeting:1", registry.address());
        desk.write("module.wasm", b"\0asm\x01\0\0\0");
        for (arguments, says) in [
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
            let said = desk.fails(&arguments);
            assert!(said.contains(says), "{arguments:?}: {said}");
        }
        // A file and its signature, as `cosign sign-blob` writes it.
        let key = SigningKey::from_pem(&private(1)).expect("a key");
        desk.write(
            "greeting.sig",
            BASE64_STANDARD.encode(key.sign_message(&component(GREETING)).expect("signed")),
        );
        let file = ["verify", "greeting.wasm", "--signature", "greeting.sig", "--key"];
        assert_eq!(
            desk.json(&[&file[..], &["ours.pub"]].concat())["verified"],
            json!(true)
        );
        let wrong = desk.fails(&[&file[..], &["theirs.pub"]].concat());
        assert!(wrong.contains("is not its signature"), "{wrong}");
    }

    #[test]
    #[ignore = "needs docker-registry: cargo xtask test real"]
    fn one_that_wants_a_password() {
        let (desk, registry) = (Desk::new(), Registry::start_private());
        let tag = format!("{}/plugins/greeting:1", registry.address());
        let said = desk.fails(&["push", "greeting.wasm", &tag]);
        assert!(said.contains("refuses nobody in particular"), "{said}");
        let login = |password: &str| {
            let auth = BASE64_STANDARD.encode(format!("{REGISTRY_USER}:{password}"));
            desk.write(
                "config.json",
                json!({"auths": {registry.address(): {"auth": auth}}}).to_string(),
            );
        };
        login("not-the-passphrase");
        let said = desk.fails(&["push", "greeting.wasm", &tag]);
        assert!(said.contains("refuses the user \"robot\""), "{said}");
        assert!(!said.contains("not-the-passphrase"), "{said}");
        login(REGISTRY_PASSWORD);
        let pushed = desk.json(&["push", "greeting.wasm", &tag, "--sign", "ours.key"]);
        let verified = desk.json(&["verify", text(&pushed["reference"]), "--key", "ours.pub"]);
        assert_eq!(verified["verified"], json!(true));
    }

    #[tokio::test]
    #[ignore = "needs docker-registry: cargo xtask test real"]
    async fn starts_from_the_cache_while_the_registry_is_down() {
        let (desk, mut registry) = (Desk::new(), Registry::start_public());
        let tag = format!("{}/plugins/greeting:1", registry.address());
        let pushed = desk.json(&["push", "greeting.wasm", &tag, "--sign", "ours.key"]);
        let pinned = text(&pushed["reference"]);
        let ours = SignaturePolicy::any_of(vec![desk.public("ours")]);
        let theirs = SignaturePolicy::any_of(vec![desk.public("theirs")]);
        let cache = desk.at("cache");
        let first = pull(&store(&cache), pinned, &ours).await.expect("pulled");
        assert_eq!((first.cached, &first.wasm), (false, &component(GREETING)));
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
        let says = by_tag.offline.expect("it says so");
        assert!(says.contains(registry.address()), "{says}");
        assert_eq!(by_tag.digest, text(&pushed["digest"]));
        // The cache vouches for nobody.
        let error = pull(&store(&cache), pinned, &theirs)
            .await
            .expect_err("not theirs");
        assert!(error.is_transient(), "{error}");
        let told = pull(&store(&cache), pinned, &theirs.permissive())
            .await
            .expect("from the cache");
        let unknown = told.unsigned.expect("it says so").to_string();
        assert!(unknown.contains("could not be found out"), "{unknown}");
        let error = pull(&store(&desk.at("empty")), pinned, &ours)
            .await
            .expect_err("nothing there");
        assert_eq!(error.reason(), "PullFailed");
        // Broken, it is no better than none; the registry mends it.
        let layer = cache
            .join("blobs/sha256")
            .join(Digest::of_bytes(&component(GREETING)).hex());
        std::fs::write(&layer, b"\0asm\x0d\0\x01\0").expect("broken");
        let error = pull(&store(&cache), pinned, &ours).await.expect_err("broken");
        assert_eq!(error.reason(), "PullFailed");
        registry.restart();
        let mended = pull(&store(&cache), pinned, &ours).await.expect("pulled again");
        assert_eq!((mended.cached, mended.wasm), (false, component(GREETING)));
    }

    #[tokio::test]
    #[ignore = "needs docker-registry: cargo xtask test real"]
    async fn what_was_changed_in_the_registry_is_refused() {
        let (desk, registry) = (Desk::new(), Registry::start_public());
        let tag = format!("{}/plugins/greeting:1", registry.address());
        let pushed = desk.json(&["push", "greeting.wasm", &tag]);
        let wasm = Digest::of_bytes(&component(GREETING));
        for digest in [wasm.as_str(), text(&pushed["digest"])] {
            let file = registry.blob_path(digest);
            let good = std::fs::read(&file).expect("on its disk");
            let mut bad = good.clone();
            *bad.last_mut().expect("not empty") ^= 1;
            std::fs::write(&file, &bad).expect("changed");
            let error = pull(
                &store(&desk.at("cache")),
                text(&pushed["reference"]),
                &SignaturePolicy::none(),
            )
            .await;
            let error = error.expect_err("changed");
            // docker-registry itself looks at manifests.
            let expected = ["DigestMismatch", "PullFailed", "NotFound"];
            assert!(expected.contains(&error.reason()), "{error}");
            if digest == wasm.as_str() {
                assert_eq!(error.reason(), "DigestMismatch", "{error}");
            }
            std::fs::write(&file, good).expect("mended");
        }
        let pulled = pull(
            &store(&desk.at("cache")),
            text(&pushed["reference"]),
            &SignaturePolicy::none(),
        )
        .await;
        assert!(!pulled.expect("mended").cached);
    }

    #[tokio::test]
    #[ignore = "needs docker-registry: cargo xtask test real"]
    async fn the_signature_of_another_is_none() {
        let (desk, registry) = (Desk::new(), Registry::start_public());
        let place = format!("{}/plugins/greeting", registry.address());
        let good = desk.json(&[
            "push",
            "greeting.wasm",
            &format!("{place}:good"),
            "--sign",
            "ours.key",
        ]);
        desk.write("probe.wasm", component("tests/probe"));
        let evil = desk.json(&["push", "probe.wasm", &format!("{place}:evil")]);
        let ours = SignaturePolicy::any_of(vec![desk.public("ours")]);
        let pull = async || pull(&store(&desk.at("cache")), text(&evil["reference"]), &ours).await;
        assert_eq!(pull().await.expect_err("not signed").reason(), "SignatureMissing");
        // Somebody who may write to the registry copies the signature.
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
            .header("accept", MANIFEST)
            .send()
            .await
            .expect("an answer");
        let copied = copied.bytes().await.expect("a manifest");
        let put = http.put(sig(&evil)).header("content-type", MANIFEST).body(copied);
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

    #[tokio::test]
    #[ignore = "needs docker-registry: cargo xtask test real"]
    async fn other_artifacts_say_what_they_are() {
        let (desk, registry) = (Desk::new(), Registry::start_public());
        let blobs: [&[u8]; 2] = [b"{}", b"a layer"];
        let artifact = |config: &str, layer: &str| {
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(config, blobs[0]),
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
        for (manifest, says) in [
            (image, "a container image"),
            (chart, "a Helm chart"),
            (text, "a layer of type \"text/plain\""),
        ] {
            let reference = put(&registry, "other/thing", &manifest, &blobs).await;
            let error = pull(&store(&desk.at("cache")), &reference, &SignaturePolicy::none())
                .await
                .expect_err(says);
            assert_eq!(error.reason(), "NotAComponent");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[tokio::test]
    #[ignore = "needs docker-registry: cargo xtask test real"]
    async fn pushed_in_the_layout_others_read() {
        let (desk, registry) = (Desk::new(), Registry::start_public());
        let tag = format!("{}/plugins/greeting:1", registry.address());
        let pushed = desk.json(&["push", "greeting.wasm", &tag]);
        let base = format!("http://{}/v2/plugins/greeting", registry.address());
        let get = async |path: String| {
            let answer = http()
                .get(path)
                .header("accept", MANIFEST)
                .send()
                .await
                .expect("an answer");
            serde_json::from_slice::<Value>(&answer.bytes().await.expect("a body")).expect("JSON")
        };
        let manifest = get(format!("{base}/manifests/1")).await;
        assert_eq!(text(&manifest["mediaType"]), MANIFEST);
        assert_eq!(
            text(&manifest["config"]["mediaType"]),
            "application/vnd.wasm.config.v0+json"
        );
        assert_eq!(
            manifest["layers"],
            json!([descriptor("application/wasm", &component(GREETING))])
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
            json!([Digest::of_bytes(&component(GREETING)).to_string()])
        );
        let exports = config["component"]["exports"].as_array().expect("a list");
        assert!(
            exports
                .iter()
                .any(|e| text(e).starts_with("ostler:plugin/reconciler@")),
            "{exports:?}"
        );
    }
}
