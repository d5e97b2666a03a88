//! The secure address of the leader, which its Lease has as an annotation: clients find the leader and know its certificate by it.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

/// A secure address as the annotation `ostler.dev/secure-endpoint` of the Lease has it, in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecureEndpoint {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod: the host name of the process.
    pub pod: String,
    /// Port of the pod.
    pub port: u16,
    /// SHA-256 of the certificate in DER, in hexadecimal digits.
    pub certificate: String,
}

type Describe = Box<dyn Fn() -> SecureEndpoint + Send + Sync>;

/// The endpoint of this process, which is known once the secure address is bound. Its certificate may change later.
#[derive(Clone, Default)]
pub struct OwnEndpoint(Arc<OnceLock<Describe>>);

impl OwnEndpoint {
    /// Sets the function that describes the endpoint. Later calls have no effect.
    pub fn publish(&self, describe: impl Fn() -> SecureEndpoint + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(describe));
    }

    /// The endpoint as it is now; none without a secure address.
    pub fn describe(&self) -> Option<SecureEndpoint> {
        self.0.get().map(|describe| describe())
    }
}

impl std::fmt::Debug for OwnEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OwnEndpoint").field(&self.describe()).finish()
    }
}
