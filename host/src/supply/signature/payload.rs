//! The signed payloads of both layouts.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::json;

use super::{Layout, Signature};

/// Maximum number of signatures in a bundle.
const MAX_BUNDLE_SIGNATURES: usize = 32;
/// The type of a simple payload.
const SIMPLE_PAYLOAD_TYPE: &str = "cosign container image signature";
/// The predicate type of a plain signature.
const SIGN_PREDICATE_TYPE: &str = "https://sigstore.dev/cosign/sign/v1";
/// The payload type of statements.
const IN_TOTO_PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

impl Signature {
    /// Parses a signature in the simple layout.
    pub fn from_simple(payload: Vec<u8>, signature_base64: &str) -> Result<Self, String> {
        let signature = BASE64_STANDARD
            .decode(signature_base64.trim())
            .map_err(|_| "the signature is not base64".to_owned())?;
        Ok(Self {
            layout: Layout::Simple,
            payload,
            signature,
        })
    }

    /// Parses the signatures of a sigstore bundle.
    pub fn from_bundle(json: &[u8]) -> Result<Vec<Self>, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Bundle {
            dsse_envelope: Option<Envelope>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope {
            payload: String,
            payload_type: String,
            signatures: Vec<Signed>,
        }
        #[derive(Deserialize)]
        struct Signed {
            sig: String,
        }
        let bundle: Bundle =
            serde_json::from_slice(json).map_err(|e| format!("the bundle is no sigstore bundle: {e}"))?;
        let envelope = bundle
            .dsse_envelope
            .ok_or("the bundle has no dsseEnvelope; only signed statements are known")?;
        let decode = |name: &str, text: &str| {
            BASE64_STANDARD
                .decode(text)
                .map_err(|_| format!("the bundle's {name} is not base64"))
        };
        let count = envelope.signatures.len();
        if count > MAX_BUNDLE_SIGNATURES {
            return Err(format!(
                "the bundle has {count} signatures: {MAX_BUNDLE_SIGNATURES} at most"
            ));
        }
        let payload = decode("payload", &envelope.payload)?;
        let signatures = envelope.signatures.iter();
        signatures
            .map(|signed| {
                Ok(Self {
                    layout: Layout::Dsse {
                        payload_type: envelope.payload_type.clone(),
                    },
                    payload: payload.clone(),
                    signature: decode("signature", &signed.sig)?,
                })
            })
            .collect()
    }

    /// The bytes that the signature covers.
    pub fn signed_message(&self) -> Vec<u8> {
        match &self.layout {
            Layout::Simple => self.payload.clone(),
            Layout::Dsse { payload_type } => {
                let head = format!(
                    "DSSEv1 {} {payload_type} {} ",
                    payload_type.len(),
                    self.payload.len()
                );
                [head.as_bytes(), &self.payload].concat()
            }
        }
    }

    /// The digests that the payload names.
    pub fn claimed_digests(&self) -> Result<Vec<String>, String> {
        match &self.layout {
            Layout::Simple => parse_simple_claims(&self.payload).map(|digest| vec![digest]),
            Layout::Dsse { payload_type } if payload_type == IN_TOTO_PAYLOAD_TYPE => {
                parse_statement_claims(&self.payload)
            }
            Layout::Dsse { payload_type } => Err(format!(
                "a payload of type {payload_type:?}, not {IN_TOTO_PAYLOAD_TYPE}"
            )),
        }
    }
}

/// The payload that names the digest of an artifact.
pub fn simple_payload(repository: &str, digest: &str) -> Vec<u8> {
    let payload = json!({
        "critical": {
            "identity": {"docker-reference": repository},
            "image": {"docker-manifest-digest": digest},
            "type": SIMPLE_PAYLOAD_TYPE,
        },
        "optional": null,
    });
    payload.to_string().into_bytes()
}

fn parse_simple_claims(payload: &[u8]) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Payload {
        critical: Critical,
    }
    #[derive(Deserialize)]
    struct Critical {
        image: Image,
        r#type: String,
    }
    #[derive(Deserialize)]
    struct Image {
        #[serde(rename = "docker-manifest-digest")]
        digest: String,
    }
    let payload: Payload =
        serde_json::from_slice(payload).map_err(|e| format!("the payload is not simple signing: {e}"))?;
    if payload.critical.r#type != SIMPLE_PAYLOAD_TYPE {
        return Err(format!(
            "critical.type is {:?}, not {SIMPLE_PAYLOAD_TYPE:?}",
            payload.critical.r#type
        ));
    }
    Ok(payload.critical.image.digest)
}

fn parse_statement_claims(payload: &[u8]) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Statement {
        subject: Vec<Subject>,
        predicate_type: String,
    }
    #[derive(Deserialize)]
    struct Subject {
        digest: Digests,
    }
    #[derive(Deserialize)]
    struct Digests {
        sha256: Option<String>,
    }
    let statement: Statement =
        serde_json::from_slice(payload).map_err(|e| format!("the payload is no in-toto statement: {e}"))?;
    // Otherwise any attestation of the key, such as a scan with findings, would count as a signature.
    if statement.predicate_type != SIGN_PREDICATE_TYPE {
        return Err(format!(
            "the statement is about {:?}, not {SIGN_PREDICATE_TYPE:?}",
            statement.predicate_type
        ));
    }
    let digests = statement.subject.into_iter().filter_map(|s| s.digest.sha256);
    Ok(digests.map(|hex| format!("sha256:{hex}")).collect())
}
