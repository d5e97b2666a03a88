use proptest::prelude::*;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use serde_json::json;

use super::*;

const SIGNED_DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const OTHER_DIGEST: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const SIGNED_REPOSITORY: &str = "registry.example/plugins/greeting";

/// Signatures by OpenSSL 3, of [`SIGNED_REPOSITORY`] and [`SIGNED_DIGEST`]: other tools' output is accepted.
const P256_KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEcCn0xzK8bgne3VHpTow7acNOfYVc
dgpxR8LQHlLXa3Ie02SI4zqm56dEs0GS9ofAnivlKXdHfYZRWJCqj74Jmw==
-----END PUBLIC KEY-----
";
const P256_SIGNATURE: &str =
    "MEQCIFKTSj7E7nAVMYm+r1sRM4TgTSG4HNcq6T1yOtkFg+jPAiAbSBPxVeDRU4vFblPgctwQJKl23RorFtSUlHeikzpxRQ==";
const ED25519_KEY: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA8dCdNYg+D6LtoJzafZuz8iQZ20GeBsM56gk7UY0+qfM=
-----END PUBLIC KEY-----
";
const ED25519_SIGNATURE: &str =
    "aAHimCm6F5+8532E8lxVj42TJOMfA91nMyzB8dn0aD0Bw8DYqowqMNl1BecZmXdvELhJlY9Ab4qYgbTXSESrDg==";

fn encode_pem(label: &str, der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

fn generate_p256() -> SigningKey {
    let der =
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).expect("a key");
    SigningKey::from_pem(&encode_pem("PRIVATE KEY", der.as_ref())).expect("read back")
}

/// A key as OpenSSL writes it: without the public half.
fn derive_ed25519(seed: u8) -> SigningKey {
    let der = [
        &b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20"[..],
        &[seed; 32],
    ]
    .concat();
    SigningKey::from_pem(&encode_pem("PRIVATE KEY", &der)).expect("a key")
}

fn sign_payload(key: &SigningKey, payload: Vec<u8>) -> Signature {
    let signature = BASE64_STANDARD.encode(key.sign_message(&payload).expect("randomness"));
    Signature::from_simple(payload, &signature).expect("a signature")
}

/// A bundle as cosign 3 writes it, with this statement.
fn build_bundle(key: &SigningKey, payload_type: &str, statement: &serde_json::Value) -> Vec<u8> {
    let payload = statement.to_string().into_bytes();
    let unsigned = Signature {
        layout: Layout::Dsse {
            payload_type: payload_type.into(),
        },
        payload: payload.clone(),
        signature: Vec::new(),
    };
    let sig = key.sign_message(&unsigned.signed_message()).expect("randomness");
    let bundle = json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "x"}},
        "dsseEnvelope": {"payload": BASE64_STANDARD.encode(payload), "payloadType": payload_type,
            "signatures": [{"sig": BASE64_STANDARD.encode(sig)}]},
    });
    bundle.to_string().into_bytes()
}

fn build_statement(digest: &str, predicate: &str) -> serde_json::Value {
    let hex = digest.trim_start_matches("sha256:");
    json!({"_type": "https://in-toto.io/Statement/v1", "predicateType": predicate, "predicate": {},
        "subject": [{"name": "", "digest": {"sha256": hex}}]})
}

const IN_TOTO_TYPE: &str = "application/vnd.in-toto+json";
const SIGN_PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";

fn found_signatures(signatures: Vec<Signature>) -> FoundSignatures {
    FoundSignatures {
        signatures,
        malformed: Vec::new(),
    }
}

#[test]
fn signature_by_openssl_is_verified() {
    for (key, signature) in [(P256_KEY, P256_SIGNATURE), (ED25519_KEY, ED25519_SIGNATURE)] {
        let key = PublicKey::from_pem(key).expect("a key");
        let policy = SignaturePolicy::any_of(vec![key.clone()]);
        let signature = Signature::from_simple(simple_payload(SIGNED_REPOSITORY, SIGNED_DIGEST), signature)
            .expect("base64");
        let verdict = policy
            .verify_digest(SIGNED_DIGEST, &found_signatures(vec![signature]))
            .expect("signed");
        assert_eq!(verdict.signers, [key.fingerprint().clone()]);
    }
    // `openssl pkey -pubin -outform DER | sha256sum`
    let key = PublicKey::from_pem(P256_KEY).expect("a key");
    let name = "sha256:3dd0c5426b60753c4fda2cf3be6fce077d885f2ecd8c19240f8c6c71af1a1dbf";
    assert_eq!(key.fingerprint().to_string(), name);
}

#[test]
fn own_signature_is_verified() {
    for key in [generate_p256(), derive_ed25519(1)] {
        let policy = SignaturePolicy::any_of(vec![key.public_key()]);
        let simple = sign_payload(&key, simple_payload(SIGNED_REPOSITORY, SIGNED_DIGEST));
        assert!(
            policy
                .verify_digest(SIGNED_DIGEST, &found_signatures(vec![simple]))
                .is_ok()
        );
        let bundle = build_bundle(
            &key,
            IN_TOTO_TYPE,
            &build_statement(SIGNED_DIGEST, SIGN_PREDICATE),
        );
        let bundled = Signature::from_bundle(&bundle).expect("a bundle");
        assert!(
            policy
                .verify_digest(SIGNED_DIGEST, &found_signatures(bundled))
                .is_ok()
        );
    }
}

#[test]
fn violation_is_named_in_error() {
    let (key, stranger) = (generate_p256(), derive_ed25519(1));
    let policy = SignaturePolicy::any_of(vec![key.public_key()]);
    let good = sign_payload(&key, simple_payload(SIGNED_REPOSITORY, SIGNED_DIGEST));
    let mut tampered = good.clone();
    tampered.payload = simple_payload(SIGNED_REPOSITORY, OTHER_DIGEST);
    let mut cut = good.clone();
    cut.signature.pop();
    let dsse_as_simple = {
        let mut signature = good.clone();
        signature.layout = Layout::Dsse {
            payload_type: IN_TOTO_TYPE.into(),
        };
        signature
    };
    let bundled = |payload_type, digest, predicate| {
        Signature::from_bundle(&build_bundle(
            &key,
            payload_type,
            &build_statement(digest, predicate),
        ))
        .expect("a bundle")
    };
    let cases = [
        (found_signatures(vec![]), "is not signed"),
        (
            found_signatures(vec![sign_payload(
                &stranger,
                simple_payload(SIGNED_REPOSITORY, SIGNED_DIGEST),
            )]),
            "has one signature, none by a key",
        ),
        (found_signatures(vec![tampered]), "none by a key"),
        (found_signatures(vec![cut]), "none by a key"),
        (found_signatures(vec![dsse_as_simple]), "none by a key"),
        (
            found_signatures(vec![sign_payload(
                &key,
                simple_payload(SIGNED_REPOSITORY, OTHER_DIGEST),
            )]),
            "is of sha256:ba7816bf",
        ),
        (
            found_signatures(bundled(IN_TOTO_TYPE, OTHER_DIGEST, SIGN_PREDICATE)),
            "is of sha256:ba7816bf",
        ),
        (
            found_signatures(vec![sign_payload(&key, b"hello".to_vec())]),
            "malformed: the payload is not simple signing",
        ),
        (
            found_signatures(vec![sign_payload(
                &key,
                simple_payload(SIGNED_REPOSITORY, SIGNED_DIGEST)
                    .iter()
                    .map(|b| if *b == b'g' { b'h' } else { *b })
                    .collect(),
            )]),
            "malformed",
        ),
        (
            found_signatures(bundled(
                IN_TOTO_TYPE,
                SIGNED_DIGEST,
                "https://slsa.dev/provenance/v1",
            )),
            "is about \"https://slsa.dev",
        ),
        (
            found_signatures(bundled("text/plain", SIGNED_DIGEST, SIGN_PREDICATE)),
            "a payload of type \"text/plain\"",
        ),
        (
            FoundSignatures {
                signatures: vec![],
                malformed: vec!["its layer has no annotation".into()],
            },
            "malformed: its layer has no annotation",
        ),
    ];
    for (found, expected) in cases {
        let error = policy.verify_digest(SIGNED_DIGEST, &found).expect_err(expected);
        assert!(
            error.to_string().contains(expected),
            "{error}\nexpected: {expected}"
        );
        assert_eq!(error.is_missing(), expected == "is not signed");
        // A permissive policy reports the same.
        let verdict = policy
            .clone()
            .permissive()
            .verify_digest(SIGNED_DIGEST, &found)
            .expect("optional");
        assert_eq!(
            verdict,
            Verification {
                signers: vec![],
                problem: Some(error)
            }
        );
    }
    // Invalid signatures do not hide a valid one.
    let many = FoundSignatures {
        signatures: vec![
            sign_payload(&key, simple_payload(SIGNED_REPOSITORY, OTHER_DIGEST)),
            sign_payload(&stranger, b"x".to_vec()),
            good,
        ],
        malformed: vec!["something".into()],
    };
    assert!(policy.verify_digest(SIGNED_DIGEST, &many).is_ok());
}

#[test]
fn quorum_counts_distinct_trusted_keys() {
    let keys = [derive_ed25519(1), derive_ed25519(2), derive_ed25519(3)];
    let by = |signers: &[usize]| {
        found_signatures(
            signers
                .iter()
                .map(|i| sign_payload(&keys[*i], simple_payload(SIGNED_REPOSITORY, SIGNED_DIGEST)))
                .collect(),
        )
    };
    let public = || keys[..2].iter().map(SigningKey::public_key).collect::<Vec<_>>();
    let (any, all) = (
        SignaturePolicy::any_of(public()),
        SignaturePolicy::all_of(public()),
    );
    for (signers, any_holds, all_holds) in [
        (&[0][..], true, false),
        (&[1], true, false),
        (&[0, 1], true, true),
        (&[2], false, false),
        (&[0, 2], true, false),
        (&[0, 0], true, false),
    ] {
        assert_eq!(
            any.verify_digest(SIGNED_DIGEST, &by(signers)).is_ok(),
            any_holds,
            "{signers:?}"
        );
        assert_eq!(
            all.verify_digest(SIGNED_DIGEST, &by(signers)).is_ok(),
            all_holds,
            "{signers:?}"
        );
    }
    let missing = all
        .verify_digest(SIGNED_DIGEST, &by(&[0]))
        .expect_err("one is missing")
        .to_string();
    assert!(
        missing.contains(&keys[1].public_key().fingerprint().to_string()),
        "{missing}"
    );
    assert!(
        SignaturePolicy::none()
            .verify_digest(SIGNED_DIGEST, &found_signatures(vec![]))
            .is_ok()
    );
    for nobody in [SignaturePolicy::any_of(vec![]), SignaturePolicy::all_of(vec![])] {
        assert_eq!(
            nobody.verify_digest(SIGNED_DIGEST, &by(&[0])),
            Err(SignatureError::NoKeys)
        );
    }
}

#[test]
fn invalid_key_error_names_remedy() {
    let certificate = encode_pem("CERTIFICATE", b"x");
    let p384 = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE/YILZ5cdsa0SHIkmWqmVL9XIoeRMigyI
VnD0h1E6iSxDGBVsY0IIZypbAk1O77DEypTZgDnXXFOtzj73CrjwqVYgVthSU4/k
939EgO9MqKOOea0Ret9MPuUHhO35GKBM
-----END PUBLIC KEY-----
";
    for (text, expected) in [
        ("ssh-ed25519 AAAA", "no PEM PUBLIC KEY"),
        (&encode_pem("PRIVATE KEY", b"hunter2"), "this is a private key"),
        (&certificate, "openssl x509"),
        (p384, "neither an ECDSA P-256 nor"),
    ] {
        let error = PublicKey::from_pem(text).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    for (label, expected) in [
        ("ENCRYPTED SIGSTORE PRIVATE KEY", "cosign sign --key"),
        ("ENCRYPTED COSIGN PRIVATE KEY", "cosign sign --key"),
        ("ENCRYPTED PRIVATE KEY", "decrypts it"),
        ("EC PRIVATE KEY", "-topk8"),
        ("PUBLIC KEY", "no PEM PRIVATE KEY"),
        ("PRIVATE KEY", "neither an ECDSA P-256 nor"),
    ] {
        let error = SigningKey::from_pem(&encode_pem(label, b"hunter2"))
            .err()
            .expect(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn signature_survives_serialization() {
    let key = derive_ed25519(1);
    let bundle = build_bundle(
        &key,
        IN_TOTO_TYPE,
        &build_statement(SIGNED_DIGEST, SIGN_PREDICATE),
    );
    let mut signatures = Signature::from_bundle(&bundle).expect("a bundle");
    signatures.push(sign_payload(
        &key,
        simple_payload(SIGNED_REPOSITORY, SIGNED_DIGEST),
    ));
    let kept = serde_json::to_vec(&signatures).expect("JSON");
    assert_eq!(
        serde_json::from_slice::<Vec<Signature>>(&kept).expect("read back"),
        signatures
    );
}

proptest! {
    /// A changed payload or signature is never accepted.
    #[test]
    fn changed_signature_is_refused(at in any::<prop::sample::Index>(), bit in 0u8..8, payload: bool) {
        let key = derive_ed25519(1);
        let mut signature = sign_payload(&key, simple_payload(SIGNED_REPOSITORY, SIGNED_DIGEST));
        let bytes = if payload { &mut signature.payload } else { &mut signature.signature };
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(SignaturePolicy::any_of(vec![key.public_key()]).verify_digest(SIGNED_DIGEST, &found_signatures(vec![signature])).is_err());
    }

    /// Arbitrary bundles are refused with an error and never panic.
    #[test]
    fn arbitrary_bundle_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>()) {
        let _ = Signature::from_bundle(&bytes);
        let whole = build_bundle(&derive_ed25519(1), IN_TOTO_TYPE, &build_statement(SIGNED_DIGEST, SIGN_PREDICATE));
        let mut broken = whole[..at.index(whole.len())].to_vec();
        broken.extend(bytes);
        let _ = Signature::from_bundle(&broken);
    }
}
