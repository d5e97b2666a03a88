//! Entries of permissions: each kind of entry in a file of its own, with what it allows, checks and says.

use std::fmt;

use super::{Access, Permissions};

/// An entry of [`Permissions`]: an item of one of the lists, or a flag that is set. Its text form is one line for people.
pub trait PermissionEntry: fmt::Display {
    /// The field of [`Permissions`] that has the entry.
    fn field(&self) -> &'static str;

    /// Checks that the entry allows something. The error begins with the name of a field of the entry.
    fn check_fields(&self) -> Result<(), String> {
        Ok(())
    }

    /// Allows an access in a call for an object at this place. `permissions` are those that the entry is part of.
    fn allows(&self, access: &Access<'_>, own: OwnPlace<'_>, permissions: &Permissions) -> bool;

    /// The line of what the entry asks for and the granted permissions do not cover; none if they cover all of it.
    fn find_missing(&self, granted: &Permissions) -> Option<String>;
}

/// The place of the reconciled object, which entries are relative to.
#[derive(Clone, Copy)]
pub struct OwnPlace<'a> {
    /// Its namespace; empty for a cluster-scoped object.
    pub(super) namespace: &'a str,
    /// Its cluster; empty for the host's own.
    pub(super) cluster: &'a str,
}

impl<'a> OwnPlace<'a> {
    /// The namespace that `Same` stands for on a cluster. On the host's own, objects of another one count as objects in the
    /// namespace of their `Cluster`: who may create a namespace there must not reach that of its name here.
    pub(super) fn namespace_on(&self, cluster: &str) -> &'a str {
        match self.cluster.split_once('/') {
            Some((namespace, _)) if cluster.is_empty() => namespace,
            _ => self.namespace,
        }
    }
}

/// Erases the types of the entries of a list.
pub(super) fn erase<T: PermissionEntry>(entries: &[T]) -> impl Iterator<Item = &dyn PermissionEntry> {
    entries.iter().map(|entry| entry as &dyn PermissionEntry)
}
