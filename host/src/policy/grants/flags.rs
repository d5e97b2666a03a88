//! The flags of permissions, as entries.

use std::fmt;

use super::{
    Access, Permissions,
    entry::{OwnPlace, PermissionEntry},
};

/// The flag `events`.
pub struct EventsGrant;

/// The flag `readSecrets`. It allows nothing by itself: it extends the entries of `kubernetes`.
pub struct ReadSecretsGrant;

impl fmt::Display for EventsGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("emit Events")
    }
}

impl fmt::Display for ReadSecretsGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("read values of Secrets")
    }
}

impl PermissionEntry for EventsGrant {
    fn field(&self) -> &'static str {
        "events"
    }

    fn allows(&self, access: &Access<'_>, _: OwnPlace<'_>, _: &Permissions) -> bool {
        matches!(access, Access::Events)
    }

    fn find_missing(&self, granted: &Permissions) -> Option<String> {
        (!granted.events).then(|| self.to_string())
    }
}

impl PermissionEntry for ReadSecretsGrant {
    fn field(&self) -> &'static str {
        "readSecrets"
    }

    fn allows(&self, _: &Access<'_>, _: OwnPlace<'_>, _: &Permissions) -> bool {
        false
    }

    fn find_missing(&self, granted: &Permissions) -> Option<String> {
        (!granted.read_secrets).then(|| self.to_string())
    }
}
