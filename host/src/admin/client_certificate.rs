//! Users with client certificates, such as that of kubeadm's `admin.conf`: the secure address accepts those that the API server accepts.
//!
//! The authority is that of the ConfigMap `extension-apiserver-authentication` in `kube-system`, by which API servers tell aggregated ones
//! how to authenticate. Name and groups of the user are read from the subject as the API server does it.

use std::sync::Arc;

use anyhow::Context;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use serde::Deserialize;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::client::{
    access_review::ReviewedUser,
    api::{ApiClient, ApiError, parse_response},
};

/// Path of the ConfigMap. The Role `extension-apiserver-authentication-reader`, which every cluster has, allows to read it.
const AUTHORITY_PATH: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// Group of all authenticated users.
const AUTHENTICATED_GROUP: &str = "system:authenticated";

/// Reads the certificates of the authority in PEM format; none if the API server accepts no client certificates.
///
/// # Errors
/// The request failed. A host without the right to read it is answered 403.
pub async fn read_client_authority(client: &ApiClient) -> Result<Option<String>, ApiError> {
    #[derive(Deserialize)]
    struct ConfigMap {
        #[serde(default)]
        data: Data,
    }
    #[derive(Default, Deserialize)]
    struct Data {
        #[serde(rename = "client-ca-file")]
        authority: Option<String>,
    }
    match client.get(AUTHORITY_PATH).await {
        Ok(bytes) => Ok(parse_response::<ConfigMap>(&bytes)?.data.authority),
        Err(e) if e.code() == 404 => Ok(None),
        Err(e) => Err(e),
    }
}

/// A verifier of the certificates that this authority has signed. Clients may have none.
///
/// # Errors
/// There is no usable certificate in the text.
pub fn build_verifier(authority: &str) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.context("the client authority is not in PEM format")?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
    Ok(verifier.allow_unauthenticated().build()?)
}

/// Reads the user of a verified certificate: its common name, and its organizations as groups. None without a common name.
pub fn read_user(certificate: &CertificateDer<'_>) -> Option<ReviewedUser> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().last()?.as_str().ok()?;
    let groups = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok());
    (!name.is_empty()).then(|| ReviewedUser {
        username: name.to_owned(),
        groups: groups.chain([AUTHENTICATED_GROUP]).map(str::to_owned).collect(),
        ..ReviewedUser::default()
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(subject: &[(DnType, &str)]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name = Default::default();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("signed").der().clone()
    }

    #[test]
    fn user_of_certificate_is_its_common_name_and_groups_its_organizations() {
        let ada = certificate(&[
            (DnType::OrganizationName, "system:masters"),
            (DnType::CommonName, "ada"),
        ]);
        let user = read_user(&ada).expect("a user");
        assert_eq!(user.username, "ada");
        assert_eq!(user.groups, ["system:masters", AUTHENTICATED_GROUP]);
        let nobody = certificate(&[(DnType::OrganizationName, "system:masters")]);
        assert_eq!(read_user(&nobody), None);
        assert_eq!(read_user(&certificate(&[(DnType::CommonName, "")])), None);
    }

    #[test]
    fn authority_without_certificates_is_refused() {
        assert!(build_verifier("").is_err());
        assert!(build_verifier("-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n").is_err());
    }
}
