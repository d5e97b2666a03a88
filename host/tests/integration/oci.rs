//! Pulls from registries that are slow, strict, broken or malicious. The scenarios pull from a real one.

mod cosign;
mod fake;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::IntoResponse,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use fake::{Asked, BUNDLE, CONFIG, Fake, MANIFEST, PASSWORD, answer, descriptor, status, wasm};
use ostler::testing::{
    oci::{ComponentStore, Digest, OciReference, PullLimits, RegistryAuth},
    signature::{PublicKey, SignaturePolicy, SigningKey, simple_payload},
};
use serde_json::{Value, json};

fn store() -> ComponentStore {
    ComponentStore::new(None, PullLimits::default())
}

fn login(registry: &str) -> RegistryAuth {
    let auth = BASE64_STANDARD.encode(format!("robot:{PASSWORD}"));
    let config = json!({"auths": {registry: {"auth": auth}}});
    RegistryAuth::from_docker_config(config.to_string().as_bytes()).expect("a config")
}

/// The key derived from this number.
fn key(seed: u8) -> SigningKey {
    let der = [
        &b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20"[..],
        &[seed; 32],
    ]
    .concat();
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        BASE64_STANDARD.encode(der)
    );
    SigningKey::from_pem(&pem).expect("a key")
}

fn policy(key: &PublicKey) -> SignaturePolicy {
    SignaturePolicy::any_of(vec![key.clone()])
}

#[tokio::test]
async fn component_is_pulled_in_two_requests() {
    let fake = Fake::plain().await;
    let reference = fake.component();
    assert_eq!(fake.pull(&reference).await.expect("pulled"), wasm());
    // The manifest and the layer; no request for a token or for signatures.
    assert_eq!(fake.asked().len(), 2);
    assert!(
        fake.asked()
            .iter()
            .all(|(_, authorization)| authorization.is_none())
    );
}

#[tokio::test]
async fn transient_failure_is_retried() {
    let fake = Fake::start(|_, request, nth| {
        let blob = request.uri().path().contains("/blobs/");
        match (blob, nth) {
            (false, 1) => Some(status(503, "")),
            (false, 2) => Some((StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "0")]).into_response()),
            // The declared length is larger than the body.
            (true, 1) => {
                let cut = futures::stream::iter([Ok(wasm().slice(..4)), Err(std::io::Error::other("cut"))]);
                Some(Body::from_stream(cut).into_response())
            }
            _ => None,
        }
    })
    .await;
    let reference = fake.component();
    assert_eq!(fake.pull(&reference).await.expect("pulled"), wasm());
    assert_eq!(fake.asked().len(), 5);
}

#[tokio::test]
async fn permanent_failure_is_returned() {
    for (code, body, reason, says) in [
        (503, "", "PullFailed", "HTTP 503"),
        (404, "", "NotFound", "/a/b has no sha256:"),
        (
            403,
            r#"{"errors":[{"code":"DENIED","message":"no, hunter2"}]}"#,
            "Unauthorized",
            "DENIED",
        ),
        (401, "", "Unauthorized", "refuses access without credentials"),
        (
            418,
            r#"{"errors":[{"code":"<script>"}]}"#,
            "PullFailed",
            "HTTP 418",
        ),
        (200, "<html>", "DigestMismatch", "the manifest"),
    ] {
        let fake = Fake::start(move |_, _, _| Some(status(code, body))).await;
        let reference = fake.component();
        let error = fake.pull(&reference).await.expect_err(says);
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        for secret in ["hunter2", "<script>"] {
            assert!(!error.to_string().contains(secret), "{error}");
        }
        assert_eq!(error.is_transient(), reason == "PullFailed");
        // A definite status is not retried.
        assert_eq!(fake.asked().len(), if code == 503 { 4 } else { 1 }, "{error}");
    }
    let gone: OciReference = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        format!(
            "{}/a/b@{}",
            listener.local_addr().expect("an address"),
            Digest::of_bytes(b"")
        )
        .parse()
        .expect("a reference")
    };
    let error = store()
        .pull_component(&gone, &RegistryAuth::anonymous(), &SignaturePolicy::none())
        .await
        .expect_err("no server");
    assert!(error.is_transient(), "{error}");
}

#[tokio::test]
async fn registry_without_tls_names_the_option_for_plain_http() {
    let fake = Fake::plain().await;
    // The address is no loopback address, and leads to this machine.
    let unspecified = fake.address.replace("127.0.0.1", "0.0.0.0");
    let component = fake.component().to_string();
    let reference: OciReference = component
        .replace(&fake.address, &unspecified)
        .parse()
        .expect("a reference");
    let error = fake
        .pull(&reference)
        .await
        .expect_err("TLS is expected")
        .to_string();
    assert!(
        error.contains("the server answers without TLS")
            && error.contains(&format!("--plain-http-registry {unspecified}")),
        "{error}"
    );
    assert_eq!(fake.asked(), []);
    store()
        .with_plain_http([unspecified])
        .pull_component(&reference, &RegistryAuth::anonymous(), &SignaturePolicy::none())
        .await
        .expect("pulled");
}

#[tokio::test]
async fn tag_needs_development_mode() {
    let fake = Fake::plain().await;
    let pinned = fake.component();
    let digest = pinned.digest().expect("pinned");
    let manifest = fake.things.lock().expect("lock")[&format!("/v2/a/b/manifests/{digest}")]
        .1
        .clone();
    fake.put("manifests/1", MANIFEST, manifest);
    let tag = fake.reference();
    let error = fake.pull(&tag).await.expect_err("a tag");
    assert_eq!(error.reason(), "DigestRequired");
    assert!(
        error.to_string().contains(&format!("pin {tag}@{digest}")),
        "{error}"
    );
    let pulled = store()
        .with_tags()
        .pull_component(&tag, &RegistryAuth::anonymous(), &SignaturePolicy::none())
        .await
        .expect("pulled");
    assert_eq!((pulled.digest, pulled.offline), (digest.to_string(), None));
}

#[tokio::test]
async fn oversized_content_is_not_read() {
    // With and without a declared length.
    for promised in [true, false] {
        let fake = Fake::start(move |_, request, _| {
            let blob = request.uri().path().contains("/blobs/");
            let chunk = || Ok::<_, std::io::Error>(Bytes::from(vec![0; 1 << 16]));
            let body = Body::from_stream(futures::stream::repeat_with(chunk));
            blob.then(|| match promised {
                true => ([(header::CONTENT_LENGTH, (1u64 << 40).to_string())], body).into_response(),
                false => body.into_response(),
            })
        })
        .await;
        let reference = fake.component();
        let error = fake.pull(&reference).await.expect_err("too much");
        assert_eq!(error.reason(), "TooLarge", "{error}");
        assert_eq!(fake.asked().len(), 2, "and no further request");
    }
    // A declared size above the limit is not requested.
    let fake = Fake::plain().await;
    let reference = fake.component();
    let limits = PullLimits {
        component_bytes: 7,
        ..PullLimits::default()
    };
    let small = ComponentStore::new(None, limits);
    let error = small
        .pull_component(&reference, &RegistryAuth::anonymous(), &SignaturePolicy::none())
        .await
        .expect_err("too large");
    assert_eq!(error.to_string(), "the component has 8 bytes; 7 are allowed");
    assert_eq!(fake.asked().len(), 1);
}

#[tokio::test]
async fn endless_response_times_out() {
    let fake = Fake::start(|_, _, _| {
        let body = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        Some(Body::from_stream(body).into_response())
    })
    .await;
    let limits = PullLimits {
        timeout: Duration::from_millis(200),
        ..PullLimits::default()
    };
    let reference = fake.component();
    let pulled = ComponentStore::new(None, limits)
        .pull_component(&reference, &RegistryAuth::anonymous(), &SignaturePolicy::none())
        .await;
    let error = pulled.expect_err("late");
    assert!(
        error.is_transient() && error.to_string().contains("took longer"),
        "{error}"
    );
}

#[tokio::test]
async fn token_is_fetched_once_and_reused() {
    let fake = Fake::start(|fake, request, _| {
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.map(|v| v.to_str().expect("text"));
        if request.uri().path() == "/token" {
            assert_eq!(
                request.uri().query(),
                Some("service=fake&scope=repository%3Aa%2Fb%3Apull")
            );
            let expected = format!("Basic {}", BASE64_STANDARD.encode(format!("robot:{PASSWORD}")));
            return Some(match authorization == Some(&expected) {
                true => answer("application/json", r#"{"access_token": "let-me-in"}"#.into()),
                false => status(401, PASSWORD),
            });
        }
        if authorization == Some("Bearer let-me-in") {
            return None;
        }
        let realm = format!(
            r#"Bearer realm="http://{}/token",service="fake",scope="repository:a/b:pull""#,
            fake.address
        );
        Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, realm)]).into_response())
    })
    .await;
    let reference = fake.component();
    let pulled = store()
        .pull_component(&reference, &login(&fake.address), &SignaturePolicy::none())
        .await
        .expect("let in");
    assert_eq!(pulled.wasm, wasm());
    let paths: Vec<_> = fake.asked().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths.iter().filter(|path| *path == "/token").count(), 1);
    assert_eq!(paths.len(), 4, "refused once: {paths:?}");

    let error = fake.pull(&reference).await.expect_err("nobody in particular");
    assert_eq!(error.reason(), "Unauthorized");
    let wrong = RegistryAuth::from_docker_config(
        json!({"auths": {&fake.address: {"username": "robot", "password": "wrong-passphrase"}}})
            .to_string()
            .as_bytes(),
    );
    let error = store()
        .pull_component(&reference, &wrong.expect("a config"), &SignaturePolicy::none())
        .await
        .expect_err("wrong");
    let said = format!("{error} {error:?}");
    assert!(
        said.contains("the user \"robot\"") && error.reason() == "Unauthorized",
        "{said}"
    );
    assert!(
        !said.contains("wrong-passphrase") && !said.contains(PASSWORD),
        "{said}"
    );
}

#[tokio::test]
async fn credentials_are_sent_to_their_registry_only() {
    let elsewhere = Fake::plain().await;
    elsewhere.component();
    let other = elsewhere.address.clone();
    let fake = Fake::start(move |_, request, _| {
        let path = request.uri().path();
        if request.headers().get(header::AUTHORIZATION).is_none() {
            let basic = [(header::WWW_AUTHENTICATE, "Basic realm=\"fake\"")];
            return Some((StatusCode::UNAUTHORIZED, basic).into_response());
        }
        let there = format!("http://{other}{path}?signature=hunter2");
        let redirect = (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, there)]);
        path.contains("/blobs/").then(|| redirect.into_response())
    })
    .await;
    let reference = fake.component();
    let auth = login(&fake.address);
    let pulled = store()
        .pull_component(&reference, &auth, &SignaturePolicy::none())
        .await
        .expect("pulled");
    assert_eq!(pulled.wasm, wasm());
    let asked = elsewhere.asked();
    assert_eq!(asked.len(), 1, "the redirect was followed");
    assert_eq!(asked[0].1, None, "without credentials");
    // The target of the redirect, whose query is a credential, stays out of the error.
    elsewhere.things.lock().expect("lock").clear();
    let error = store()
        .pull_component(&reference, &auth, &SignaturePolicy::none())
        .await
        .expect_err("gone");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    // A token server on another host, and without TLS.
    let thief = Fake::plain().await;
    let realm = format!(
        r#"Bearer realm="http://localhost.example:{}/token""#,
        thief.address.rsplit(':').next().expect("a port")
    );
    let fake = Fake::start(move |_, _, _| {
        Some(
            (
                StatusCode::UNAUTHORIZED,
                [(header::WWW_AUTHENTICATE, realm.clone())],
            )
                .into_response(),
        )
    })
    .await;
    let reference = fake.component();
    let error = store()
        .pull_component(&reference, &login(&fake.address), &SignaturePolicy::none())
        .await
        .expect_err("a thief");
    assert!(
        error.to_string().contains("token server without https"),
        "{error}"
    );
    assert_eq!(thief.asked(), []);
}

/// A challenge after a redirect would name where the credentials are sent to.
#[tokio::test]
async fn challenge_of_redirect_target_is_not_answered() {
    let thief = Fake::start(|thief, request, _| {
        if request.uri().path() == "/token" {
            return Some(answer("application/json", r#"{"token": "x"}"#.into()));
        }
        let realm = format!(r#"Bearer realm="http://{}/token""#, thief.address);
        Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, realm)]).into_response())
    })
    .await;
    let there = format!("http://{}/v2/", thief.address);
    let fake = Fake::start(move |_, request, _| {
        let blob = request.uri().path().contains("/blobs/");
        blob.then(|| {
            (
                StatusCode::TEMPORARY_REDIRECT,
                [(header::LOCATION, there.clone())],
            )
                .into_response()
        })
    })
    .await;
    let error = store()
        .pull_component(&fake.component(), &login(&fake.address), &SignaturePolicy::none())
        .await
        .expect_err("a thief");
    assert_eq!(error.reason(), "Unauthorized");
    let asked = thief.asked();
    assert!(
        asked
            .iter()
            .all(|(path, sent)| path != "/token" && sent.is_none()),
        "{asked:?}"
    );
    assert_eq!(asked.len(), 1, "the redirect was followed");
}

/// A redirect of a token server would repeat the body with the refresh token elsewhere.
#[tokio::test]
async fn token_request_follows_no_redirect() {
    let thief = Fake::start(|_, _, _| Some(answer("application/json", r#"{"token": "x"}"#.into()))).await;
    let there = format!("http://{}/token", thief.address);
    let fake = Fake::start(move |fake, request, _| {
        if request.uri().path() == "/token" {
            return Some(
                (
                    StatusCode::PERMANENT_REDIRECT,
                    [(header::LOCATION, there.clone())],
                )
                    .into_response(),
            );
        }
        let realm = format!(r#"Bearer realm="http://{}/token""#, fake.address);
        Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, realm)]).into_response())
    })
    .await;
    let reference = fake.component();
    let config = json!({"auths": {&fake.address: {"identitytoken": PASSWORD}}}).to_string();
    let refresh = RegistryAuth::from_docker_config(config.as_bytes()).expect("a config");
    for auth in [refresh, login(&fake.address)] {
        let error = store()
            .pull_component(&reference, &auth, &SignaturePolicy::none())
            .await
            .expect_err("no token");
        assert!(error.to_string().contains("HTTP 308"), "{error}");
    }
    assert_eq!(thief.asked(), []);
}

/// Adds a signature of this payload as cosign does.
fn sign(fake: &Fake, digest: &Digest, key: &SigningKey, payload: Vec<u8>, media_type: &str) {
    let signature = BASE64_STANDARD.encode(key.sign_message(&payload).expect("randomness"));
    let mut layer = fake.blob(media_type, payload);
    layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
    let config = descriptor("application/vnd.oci.image.config.v1+json", b"{}");
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]});
    let tag = format!("manifests/sha256-{}.sig", digest.hex());
    fake.put(&tag, MANIFEST, manifest.to_string());
}

const SIMPLE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

#[tokio::test]
async fn signatures_are_verified_before_other_content_is_read() {
    let fake = Fake::plain().await;
    let reference = fake.component();
    let digest = reference.digest().expect("pinned");
    let (key, stranger) = (key(1), key(2));
    let payload = simple_payload(&reference.full_name(), digest.as_str());
    let other = simple_payload(&reference.full_name(), Digest::of_bytes(b"").as_str());
    let pull = async || {
        store()
            .pull_component(&reference, &RegistryAuth::anonymous(), &policy(&key.public_key()))
            .await
    };

    let error = pull().await.expect_err("not signed");
    assert_eq!(error.reason(), "SignatureMissing", "{error}");
    let asked_for_it = |(path, _): &Asked| path.ends_with(digest.as_str()) && path.contains("/manifests/");
    assert!(
        !fake.asked().iter().any(asked_for_it),
        "the layer is not requested without a valid signature"
    );
    for (signer, payload, media_type, says) in [
        (&stranger, &payload, SIMPLE, "none by a key of the policy"),
        (&key, &other, SIMPLE, "was it copied"),
        (&key, &payload, "text/plain", "of type \"text/plain\""),
        (&key, &b"{}".to_vec(), SIMPLE, "malformed"),
    ] {
        sign(&fake, digest, signer, payload.clone(), media_type);
        let error = pull().await.expect_err(says);
        assert_eq!(error.reason(), "InvalidSignature", "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    fake.put(
        &format!("manifests/sha256-{}.sig", digest.hex()),
        MANIFEST,
        "<html>",
    );
    let error = pull().await.expect_err("no manifest");
    assert_eq!(error.reason(), "InvalidSignature", "{error}");
    sign(&fake, digest, &key, payload, SIMPLE);
    let pulled = pull().await.expect("signed");
    assert_eq!(pulled.signers, [key.public_key().fingerprint().clone()]);
}

/// What serves is stopped for a violation. A registry that hides the repository must not look like one.
#[tokio::test]
async fn revoked_signature_is_a_violation_only_where_the_registry_shows_the_component() {
    let hidden = Arc::new(AtomicBool::new(false));
    let hides = hidden.clone();
    let fake = Fake::start(move |_, _, _| hides.load(Ordering::Relaxed).then(|| status(404, ""))).await;
    let reference = fake.component();
    let digest = reference.digest().expect("pinned");
    let cache = tempfile::tempdir().expect("a directory");
    let store = ComponentStore::new(Some(cache.path().to_owned()), PullLimits::default());
    let (revoked, trusted) = (key(1), key(2));
    let payload = simple_payload(&reference.full_name(), digest.as_str());
    sign(&fake, digest, &revoked, payload, SIMPLE);
    let auth = RegistryAuth::anonymous();
    let accepted = policy(&revoked.public_key());
    let pulled = store.pull_component(&reference, &auth, &accepted).await;
    pulled.expect("signed by the key of then");

    let verify = async || {
        let policy = policy(&trusted.public_key());
        let error = store.verify_artifact(&reference, &auth, &policy).await;
        error.expect_err("signed by a revoked key")
    };
    let error = verify().await;
    assert!(error.is_violation(), "{error}");
    hidden.store(true, Ordering::Relaxed);
    let error = verify().await;
    assert!(!error.is_violation(), "{error}");
    assert_eq!(error.reason(), "NotFound");
    // A key of the policy needs no registry: its signature is cached.
    let verified = store.verify_artifact(&reference, &auth, &accepted).await;
    verified.expect("still accepted");
}

#[tokio::test]
async fn bundles_are_found_by_referrers_api_or_tag() {
    // A registry with the referrers API, and one with the tag in its place.
    for knows in [true, false] {
        let fake = Fake::plain().await;
        let reference = fake.component();
        let digest = reference.digest().expect("pinned");
        let key = key(1);
        let bundle = |digest: &Digest| {
            let statement = json!({"_type": "https://in-toto.io/Statement/v1", "predicate": {},
                "predicateType": "https://sigstore.dev/cosign/sign/v1",
                "subject": [{"digest": {"sha256": digest.hex()}}]});
            let (kind, payload) = ("application/vnd.in-toto+json", statement.to_string());
            let message = format!("DSSEv1 {} {kind} {} {payload}", kind.len(), payload.len());
            let signature = key.sign_message(message.as_bytes()).expect("randomness");
            json!({"mediaType": BUNDLE, "verificationMaterial": {"publicKey": {}}, "dsseEnvelope": {
                "payload": BASE64_STANDARD.encode(payload), "payloadType": kind,
                "signatures": [{"sig": BASE64_STANDARD.encode(signature)}]}})
        };
        let refer = |bundle: &Value| {
            let layer = fake.blob(BUNDLE, bundle.to_string());
            let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": BUNDLE,
                "config": descriptor("application/vnd.oci.empty.v1+json", b"{}"), "layers": [layer],
                "subject": {"mediaType": MANIFEST, "digest": digest.to_string(), "size": 1}});
            let of = fake.manifest(&manifest);
            let size = manifest.to_string().len();
            let other = json!({"mediaType": MANIFEST, "digest": Digest::of_bytes(b"sbom").to_string(), "size": 4, "artifactType": "application/spdx+json"});
            let entry = json!({"mediaType": MANIFEST, "digest": of.to_string(), "size": size, "artifactType": BUNDLE});
            let index = json!({"schemaVersion": 2, "manifests": [other, entry]}).to_string();
            let path = if knows {
                format!("referrers/{digest}")
            } else {
                format!("manifests/sha256-{}", digest.hex())
            };
            fake.put(&path, "application/vnd.oci.image.index.v1+json", index);
        };
        let pull = async || {
            store()
                .pull_component(&reference, &RegistryAuth::anonymous(), &policy(&key.public_key()))
                .await
        };
        refer(&json!({"mediaType": BUNDLE}));
        let error = pull().await.expect_err("no bundle");
        assert!(error.to_string().contains("no dsseEnvelope"), "{error}");
        refer(&bundle(&Digest::of_bytes(b"")));
        let error = pull().await.expect_err("of something else");
        assert!(error.to_string().contains("was it copied"), "{error}");
        refer(&bundle(digest));
        let pulled = pull().await.expect("signed");
        assert_eq!(pulled.signers.len(), 1);
    }
}

#[tokio::test]
async fn other_artifact_is_named_in_error() {
    let fake = Fake::plain().await;
    for (config, bytes, says) in [
        (
            "application/vnd.oci.image.config.v1+json",
            &b"\0asm\x0d\0\x01\0"[..],
            "a container image",
        ),
        (CONFIG, b"\0asm\x01\0\0\0", "a core module"),
        (CONFIG, b"#!/bin/sh", "not WebAssembly"),
    ] {
        let layer = fake.blob("application/wasm", bytes);
        let manifest = json!({"schemaVersion": 2, "config": descriptor(config, b"{}"), "layers": [layer]});
        let reference = fake.reference().with_digest(fake.manifest(&manifest));
        let error = fake.pull(&reference).await.expect_err(says);
        assert_eq!(error.reason(), "NotAComponent", "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn cached_content_is_used_unless_broken() {
    let directory = tempfile::tempdir().expect("a directory");
    let fake = Fake::plain().await;
    let reference = fake.component();
    let digest = reference.digest().expect("pinned");
    let key = key(1);
    sign(&fake, digest, &key, simple_payload("a", digest.as_str()), SIMPLE);
    let store = ComponentStore::new(Some(directory.path().to_owned()), PullLimits::default());
    let pull = async || {
        let before = fake.asked().len();
        let pulled = store
            .pull_component(&reference, &RegistryAuth::anonymous(), &policy(&key.public_key()))
            .await
            .expect("pulled");
        assert_eq!(pulled.wasm, wasm());
        (pulled.cached, fake.asked().len() - before)
    };
    assert_eq!(pull().await, (false, 4));
    assert_eq!(pull().await, (true, 0));
    let broken = directory
        .path()
        .join("blobs/sha256")
        .join(Digest::of_bytes(&wasm()).hex());
    std::fs::write(&broken, b"\0asm\x0d\0\x01\x01").expect("broken");
    assert_eq!(pull().await, (false, 1));
    assert_eq!(pull().await, (true, 0));
    // Modified signatures are fetched again.
    let kept = directory.path().join("signatures").join(digest.hex());
    std::fs::write(&kept, b"[]").expect("broken");
    assert_eq!(pull().await, (true, 2));
    assert_eq!(pull().await, (true, 0));
}
