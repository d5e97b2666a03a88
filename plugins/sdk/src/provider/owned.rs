//! Removal of what an object still owns on its clusters before the access to them is revoked.
//!
//! The host deletes owned objects on other clusters after the cleanup, for which it needs the credentials. So the cleanup
//! deletes them first.

use crate::{Context, DeleteOptions, Failure, ObjectMeta, ObjectRef, Preconditions, gvk};

/// Annotation of an owner with the inventory of the host.
const INVENTORY_ANNOTATION: &str = "ostler.dev/owned-objects";

/// Deletes the objects in the inventory that belong to the owner, and waits until they are gone: on all clusters, since an
/// earlier version of the plugin may have requested another one.
pub(super) fn release_owned(ctx: &Context, owner: &ObjectMeta) -> Result<(), Failure> {
    let mut left = String::new();
    for object in list_inventory(owner.annotation(INVENTORY_ANNOTATION).unwrap_or_default()) {
        let Some(live) = ctx.get_metadata(&object)? else {
            // The host removes the entry.
            ctx.delete(&object)?;
            continue;
        };
        let metadata = &live["metadata"];
        // Like the host: an entry alone deletes nothing.
        if metadata["labels"][crate::OWNER_UID_LABEL] != owner.uid.as_str() {
            continue;
        }
        if metadata["deletionTimestamp"].is_null() {
            let options = DeleteOptions {
                preconditions: Preconditions {
                    uid: metadata["uid"].as_str().map(Into::into),
                    resource_version: None,
                },
                ..DeleteOptions::default()
            };
            ctx.delete_with(&object, &options)?;
            if ctx.get_metadata(&object)?.is_none() {
                continue;
            }
        }
        left.push(' ');
        left.push_str(&object.gvk.kind);
        left.push('/');
        left.push_str(&object.name);
    }
    if left.is_empty() {
        return Ok(());
    }
    let message = [
        "Being deleted before the access to the cluster is revoked:",
        &left,
    ]
    .concat();
    Err(Failure::wait("OwnedObjectsRemain", message))
}

/// Reads the entries of an inventory, each as `Deployment.v1.apps fleet/east apps/web`.
fn list_inventory(text: &str) -> impl Iterator<Item = ObjectRef> {
    text.split(", ").filter_map(|entry| {
        let mut words = entry.split(' ');
        let (kind, cluster, place) = (words.next()?, words.next()?, words.next()?);
        let (namespace, name) = place.split_once('/')?;
        let mut parts = kind.splitn(3, '.');
        let (kind, version, group) = (parts.next()?, parts.next()?, parts.next().unwrap_or_default());
        let is_valid = !kind.is_empty() && !name.is_empty() && words.next().is_none();
        is_valid.then(|| {
            gvk(group, version, kind)
                .named(namespace, name)
                .on_cluster(cluster)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inventory_lists_the_objects_as_the_host_writes_them() {
        let text = "ConfigMap.v1 fleet/east apps/a, Deployment.v1.apps fleet/east apps/web, Namespace.v1 fleet/east /apps";
        let listed: Vec<_> = list_inventory(text).collect();
        let on = |reference: ObjectRef| reference.on_cluster("fleet/east");
        assert_eq!(
            listed,
            [
                on(gvk("", "v1", "ConfigMap").named("apps", "a")),
                on(gvk("apps", "v1", "Deployment").named("apps", "web")),
                on(gvk("", "v1", "Namespace").named("", "apps")),
            ]
        );
    }

    #[test]
    fn inventory_with_foreign_text_lists_nothing_of_it() {
        for text in [
            "",
            "x",
            "Kind fleet/east a/b",
            ".v1 c/d a/b",
            "K.v1 c/d a/",
            "K.v1 c/d a/b c",
        ] {
            assert_eq!(list_inventory(text).count(), 0, "{text}");
        }
    }
}
