//! `references`: objects that cannot go while used. Declared, and not offered by this host yet.

use super::Call;
use crate::bindings::{references::Host, types};

impl Host for Call {
    async fn hold(&mut self, r: types::ObjectRef) -> Result<(), types::Error> {
        self.enter()?;
        let key = self.key(&r)?;
        Err(types::Error::Unsupported(format!(
            "references.hold: this host does not hold objects yet (asked for {key})"
        )))
    }
}
