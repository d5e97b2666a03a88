"""Each <<kind>> has a ConfigMap with its message."""

from ostler import Kind, await_change, plugin, true_condition


class <<kind>>(Kind):
    group, version, kind = "<<group>>", "<<version>>", "<<kind>>"

    def reconcile(self, object, host):
        metadata, spec = object["metadata"], object["spec"]
        # Say what is wanted; the host sends it only when it differs from what is there.
        host.apply_owned({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "data": {"message": spec["message"]},
        })
        ready = true_condition("Ready", "Said", f"it says: {spec['message']}")
        return await_change().with_(ready).with_status(configMap=metadata["name"])


Reconciler = plugin("<<name>>", "0.1.0", <<kind>>())
