use proptest::prelude::*;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use serde_json::json;

use super::*;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const OTHER: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const PLACE: &str = "registry.example/plugins/greeting";

/// Made by OpenSSL 3, of [`PLACE`] and [`DIGEST`]: what we read is what others write.
const P256: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEcCn0xzK8bgne3VHpTow7acNOfYVc
dgpxR8LQHlLXa3Ie02SI4zqm56dEs0GS9ofAnivlKXdHfYZRWJCqj74Jmw==
-----END PUBLIC KEY-----
";
const P256_SIGNATURE: &str =
    "MEQCIFKTSj7E7nAVMYm+r1sRM4TgTSG4HNcq6T1yOtkFg+jPAiAbSBPxVeDRU4vFblPgctwQJKl23RorFtSUlHeikzpxRQ==";
const ED25519: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA8dCdNYg+D6LtoJzafZuz8iQZ20GeBsM56gk7UY0+qfM=
-----END PUBLIC KEY-----
";
const ED25519_SIGNATURE: &str =
    "aAHimCm6F5+8532E8lxVj42TJOMfA91nMyzB8dn0aD0Bw8DYqowqMNl1BecZmXdvELhJlY9Ab4qYgbTXSESrDg==";

fn pem(label: &str, der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

fn p256() -> SigningKey {
    let der =
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).expect("a key");
    SigningKey::from_pem(&pem("PRIVATE KEY", der.as_ref())).expect("read back")
}

/// As OpenSSL writes it: without the public half.
fn ed25519(seed: u8) -> SigningKey {
    let der = [
        &b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20"[..],
        &[seed; 32],
    ]
    .concat();
    SigningKey::from_pem(&pem("PRIVATE KEY", &der)).expect("a key")
}

fn signed(key: &SigningKey, payload: Vec<u8>) -> Signature {
    let signature = BASE64_STANDARD.encode(key.sign(&payload).expect("randomness"));
    Signature::simple(payload, &signature).expect("a signature")
}

/// A bundle as cosign 3 makes it, of this statement.
fn bundle(key: &SigningKey, payload_type: &str, statement: &serde_json::Value) -> Vec<u8> {
    let payload = statement.to_string().into_bytes();
    let unsigned = Signature {
        layout: Layout::Dsse {
            payload_type: payload_type.into(),
        },
        payload: payload.clone(),
        signature: Vec::new(),
    };
    let sig = key.sign(&unsigned.message()).expect("randomness");
    let bundle = json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "x"}},
        "dsseEnvelope": {"payload": BASE64_STANDARD.encode(payload), "payloadType": payload_type,
            "signatures": [{"sig": BASE64_STANDARD.encode(sig)}]},
    });
    bundle.to_string().into_bytes()
}

fn statement(digest: &str, predicate: &str) -> serde_json::Value {
    let hex = digest.trim_start_matches("sha256:");
    json!({"_type": "https://in-toto.io/Statement/v1", "predicateType": predicate, "predicate": {},
        "subject": [{"name": "", "digest": {"sha256": hex}}]})
}

const IN_TOTO: &str = "application/vnd.in-toto+json";
const SIGNED: &str = "https://sigstore.dev/cosign/sign/v1";

fn found(signatures: Vec<Signature>) -> Found {
    Found {
        signatures,
        malformed: Vec::new(),
    }
}

#[test]
fn takes_what_others_have_signed() {
    for (key, signature) in [(P256, P256_SIGNATURE), (ED25519, ED25519_SIGNATURE)] {
        let key = PublicKey::from_pem(key).expect("a key");
        let policy = Policy::any_of(vec![key.clone()]);
        let signature = Signature::simple(simple_payload(PLACE, DIGEST), signature).expect("base64");
        let verdict = policy.verify(DIGEST, &found(vec![signature])).expect("signed");
        assert_eq!(verdict.signers, [key.fingerprint().clone()]);
    }
    // `openssl pkey -pubin -outform DER | sha256sum`
    let key = PublicKey::from_pem(P256).expect("a key");
    let name = "sha256:3dd0c5426b60753c4fda2cf3be6fce077d885f2ecd8c19240f8c6c71af1a1dbf";
    assert_eq!(key.fingerprint().to_string(), name);
}

#[test]
fn takes_what_it_has_signed_itself() {
    for key in [p256(), ed25519(1)] {
        let policy = Policy::any_of(vec![key.public()]);
        let simple = signed(&key, simple_payload(PLACE, DIGEST));
        assert!(policy.verify(DIGEST, &found(vec![simple])).is_ok());
        let bundle = bundle(&key, IN_TOTO, &statement(DIGEST, SIGNED));
        let bundled = Signature::of_bundle(&bundle).expect("a bundle");
        assert!(policy.verify(DIGEST, &found(bundled)).is_ok());
    }
}

#[test]
fn says_what_is_wrong() {
    let (key, stranger) = (p256(), ed25519(1));
    let policy = Policy::any_of(vec![key.public()]);
    let good = signed(&key, simple_payload(PLACE, DIGEST));
    let mut tampered = good.clone();
    tampered.payload = simple_payload(PLACE, OTHER);
    let mut cut = good.clone();
    cut.signature.pop();
    let dsse_as_simple = {
        let mut signature = good.clone();
        signature.layout = Layout::Dsse {
            payload_type: IN_TOTO.into(),
        };
        signature
    };
    let bundled = |payload_type, digest, predicate| {
        Signature::of_bundle(&bundle(&key, payload_type, &statement(digest, predicate))).expect("a bundle")
    };
    let cases = [
        (found(vec![]), "is not signed"),
        (
            found(vec![signed(&stranger, simple_payload(PLACE, DIGEST))]),
            "has one signature, none by a key",
        ),
        (found(vec![tampered]), "none by a key"),
        (found(vec![cut]), "none by a key"),
        (found(vec![dsse_as_simple]), "none by a key"),
        (
            found(vec![signed(&key, simple_payload(PLACE, OTHER))]),
            "is of sha256:ba7816bf",
        ),
        (found(bundled(IN_TOTO, OTHER, SIGNED)), "is of sha256:ba7816bf"),
        (
            found(vec![signed(&key, b"hello".to_vec())]),
            "malformed: the payload is not simple signing",
        ),
        (
            found(vec![signed(
                &key,
                simple_payload(PLACE, DIGEST)
                    .iter()
                    .map(|b| if *b == b'g' { b'h' } else { *b })
                    .collect(),
            )]),
            "malformed",
        ),
        (
            found(bundled(IN_TOTO, DIGEST, "https://slsa.dev/provenance/v1")),
            "is about \"https://slsa.dev",
        ),
        (
            found(bundled("text/plain", DIGEST, SIGNED)),
            "a payload of type \"text/plain\"",
        ),
        (
            Found {
                signatures: vec![],
                malformed: vec!["its layer has no annotation".into()],
            },
            "malformed: its layer has no annotation",
        ),
    ];
    for (found, expected) in cases {
        let error = policy.verify(DIGEST, &found).expect_err(expected);
        assert!(
            error.to_string().contains(expected),
            "{error}\nexpected: {expected}"
        );
        assert_eq!(error.is_missing(), expected == "is not signed");
        // Where it is not required, the same is told.
        let verdict = policy
            .clone()
            .optional()
            .verify(DIGEST, &found)
            .expect("optional");
        assert_eq!(
            verdict,
            Verdict {
                signers: vec![],
                problem: Some(error)
            }
        );
    }
    // Bad ones don't hide a good one.
    let many = Found {
        signatures: vec![
            signed(&key, simple_payload(PLACE, OTHER)),
            signed(&stranger, b"x".to_vec()),
            good,
        ],
        malformed: vec!["something".into()],
    };
    assert!(policy.verify(DIGEST, &many).is_ok());
}

#[test]
fn any_and_all() {
    let keys = [ed25519(1), ed25519(2), ed25519(3)];
    let by = |signers: &[usize]| {
        found(
            signers
                .iter()
                .map(|i| signed(&keys[*i], simple_payload(PLACE, DIGEST)))
                .collect(),
        )
    };
    let public = || keys[..2].iter().map(SigningKey::public).collect::<Vec<_>>();
    let (any, all) = (Policy::any_of(public()), Policy::all_of(public()));
    for (signers, any_holds, all_holds) in [
        (&[0][..], true, false),
        (&[1], true, false),
        (&[0, 1], true, true),
        (&[2], false, false),
        (&[0, 2], true, false),
        (&[0, 0], true, false),
    ] {
        assert_eq!(any.verify(DIGEST, &by(signers)).is_ok(), any_holds, "{signers:?}");
        assert_eq!(all.verify(DIGEST, &by(signers)).is_ok(), all_holds, "{signers:?}");
    }
    let missing = all
        .verify(DIGEST, &by(&[0]))
        .expect_err("one is missing")
        .to_string();
    assert!(
        missing.contains(&keys[1].public().fingerprint().to_string()),
        "{missing}"
    );
    assert!(Policy::none().verify(DIGEST, &found(vec![])).is_ok());
    for nobody in [Policy::any_of(vec![]), Policy::all_of(vec![])] {
        assert_eq!(nobody.verify(DIGEST, &by(&[0])), Err(SignatureError::NoKeys));
    }
}

#[test]
fn keys_that_are_none_say_so() {
    let certificate = pem("CERTIFICATE", b"x");
    let p384 = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE/YILZ5cdsa0SHIkmWqmVL9XIoeRMigyI
VnD0h1E6iSxDGBVsY0IIZypbAk1O77DEypTZgDnXXFOtzj73CrjwqVYgVthSU4/k
939EgO9MqKOOea0Ret9MPuUHhO35GKBM
-----END PUBLIC KEY-----
";
    for (text, expected) in [
        ("ssh-ed25519 AAAA", "no PEM PUBLIC KEY"),
        (&pem("PRIVATE KEY", b"hunter2"), "this is a private key"),
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
        let error = SigningKey::from_pem(&pem(label, b"hunter2"))
            .err()
            .expect(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn survives_being_kept() {
    let key = ed25519(1);
    let bundle = bundle(&key, IN_TOTO, &statement(DIGEST, SIGNED));
    let mut signatures = Signature::of_bundle(&bundle).expect("a bundle");
    signatures.push(signed(&key, simple_payload(PLACE, DIGEST)));
    let kept = serde_json::to_vec(&signatures).expect("JSON");
    assert_eq!(
        serde_json::from_slice::<Vec<Signature>>(&kept).expect("read back"),
        signatures
    );
}

proptest! {
    /// No change of a signed payload or its signature is taken for signed.
    #[test]
    fn nothing_changed_is_taken(at in any::<prop::sample::Index>(), bit in 0u8..8, payload: bool) {
        let key = ed25519(1);
        let mut signature = signed(&key, simple_payload(PLACE, DIGEST));
        let bytes = if payload { &mut signature.payload } else { &mut signature.signature };
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(Policy::any_of(vec![key.public()]).verify(DIGEST, &found(vec![signature])).is_err());
    }

    /// Whatever a bundle is, the answer is an error and never a panic.
    #[test]
    fn bundles_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>()) {
        let _ = Signature::of_bundle(&bytes);
        let whole = bundle(&ed25519(1), IN_TOTO, &statement(DIGEST, SIGNED));
        let mut broken = whole[..at.index(whole.len())].to_vec();
        broken.extend(bytes);
        let _ = Signature::of_bundle(&broken);
    }
}
