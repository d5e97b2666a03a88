//! Output of cosign 3.1.3, for a key made for this test, is accepted.

use ostler::testing::signature::{FoundSignatures, PublicKey, Signature, SignaturePolicy};

const KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEbdXgj/svW0eqLkM1EnpALzdlG+7W
dOQmWoZvGycPALEYhEKwOSoNeowB4K1mj5qLrYcfdKS2h8aNnHwXJ8zgXQ==
-----END PUBLIC KEY-----
";

/// `cosign sign --new-bundle-format=false`
const SIMPLE: (&str, &str, &str) = (
    "sha256:494cb341930a3aef37500a0995e934407896cbd8178cfd48c7ec2d8967ad8353",
    r#"{"critical":{"identity":{"docker-reference":"127.0.0.1:39495/plugins/h"},"image":{"docker-manifest-digest":"sha256:494cb341930a3aef37500a0995e934407896cbd8178cfd48c7ec2d8967ad8353"},"type":"cosign container image signature"},"optional":null}"#,
    "MEUCIQCeDHyrgw7ONoMjFD14n3f6wUQsrO7OwfnHhINY/A2vkAIgPdiLYjKja10+p8JtEhYZKAYVPAUtT8/tlThXMEA0aNE=",
);

/// `cosign sign`
const SIGNED: (&str, &str) = (
    "sha256:0861496797f54f72b93f4c3934395e717be60b8311fcb79e4b7e165cd4c63a8e",
    r#"{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"Wq753no5nNnReqSSg1m9nzR4K6027ZqSQb8u75mlBwo="}},"dsseEnvelope":{"payload":"eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEiLCJzdWJqZWN0IjpbeyJkaWdlc3QiOnsic2hhMjU2IjoiMDg2MTQ5Njc5N2Y1NGY3MmI5M2Y0YzM5MzQzOTVlNzE3YmU2MGI4MzExZmNiNzllNGI3ZTE2NWNkNGM2M2E4ZSJ9LCJhbm5vdGF0aW9ucyI6e319XSwicHJlZGljYXRlVHlwZSI6Imh0dHBzOi8vc2lnc3RvcmUuZGV2L2Nvc2lnbi9zaWduL3YxIiwicHJlZGljYXRlIjp7fX0=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"MEUCIFPcONAsjL8BGqDWFgXF6zL5rgoppmgeLthhMHbJQ2TnAiEAz5xtCUyKxyBy6DABR7JwAw50CkQ50alsy70tB/MkeRc="}]}}"#,
);

/// `cosign attest` with the same key, which is not a signature.
const ATTESTED: (&str, &str) = (
    "sha256:c22e4a6bbb00131c33f5ce5ac0a42757261248ad9f86a903d26c52b4ab6aab26",
    r#"{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"Wq753no5nNnReqSSg1m9nzR4K6027ZqSQb8u75mlBwo="}},"dsseEnvelope":{"payload":"eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjAuMSIsInN1YmplY3QiOlt7Im5hbWUiOiIxMjcuMC4wLjE6Mzk0OTUvcGx1Z2lucy9iIiwiZGlnZXN0Ijp7InNoYTI1NiI6ImMyMmU0YTZiYmIwMDEzMWMzM2Y1Y2U1YWMwYTQyNzU3MjYxMjQ4YWQ5Zjg2YTkwM2QyNmM1MmI0YWI2YWFiMjYifX1dLCJwcmVkaWNhdGVUeXBlIjoiaHR0cHM6Ly9jb3NpZ24uc2lnc3RvcmUuZGV2L2F0dGVzdGF0aW9uL3YxIiwicHJlZGljYXRlIjp7IkRhdGEiOiJ7fVxuIiwiVGltZXN0YW1wIjoiMjAyNi0xMS0yMVQxNjoxODo0NVoifX0=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"MEUCIQCZNqKXPr0CFEjQwCITmazD2hKCanxCgQnK5A9beO5dlgIgYdD0pEZ5AiS9RcnlpTpzPuKpkbMfkXdNNUdehwa25Sc="}]}}"#,
);

fn verified(digest: &str, signatures: Vec<Signature>) -> Result<(), String> {
    let policy = SignaturePolicy::any_of(vec![PublicKey::from_pem(KEY).expect("a key")]);
    let found = FoundSignatures {
        signatures,
        malformed: Vec::new(),
    };
    policy
        .verify_digest(digest, &found)
        .map(drop)
        .map_err(|e| e.to_string())
}

#[test]
fn cosign_signatures_are_verified_and_attestation_is_refused() {
    let (digest, payload, signature) = SIMPLE;
    let simple = Signature::from_simple(payload.into(), signature).expect("a signature");
    assert_eq!(verified(digest, vec![simple.clone()]), Ok(()));
    assert!(verified(SIGNED.0, vec![simple]).is_err());
    let bundle = |json: &str| Signature::from_bundle(json.as_bytes()).expect("a bundle");
    assert_eq!(verified(SIGNED.0, bundle(SIGNED.1)), Ok(()));
    assert!(verified(digest, bundle(SIGNED.1)).is_err());
    let error = verified(ATTESTED.0, bundle(ATTESTED.1)).expect_err("an attestation");
    assert!(error.contains("the statement is about"), "{error}");
}
