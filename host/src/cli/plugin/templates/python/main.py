"""Each <<kind>> has a ConfigMap with its message."""

from ostler import Kind, await_change, plugin, true_condition


class <<kind>>(Kind):
    group, version, kind = "<<group>>", "<<version>>", "<<kind>>"

    def reconcile(self, object, host):
        metadata, spec = object["metadata"], object["spec"]
        # Apply the desired object; the host sends it only if it differs from the live one.
        host.apply_owned({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "data": {"message": spec["message"]},
        })
        ready = true_condition("Ready", "Applied", f"message applied: {spec['message']}")
        return await_change().with_(ready).with_status(configMap=metadata["name"])


Reconciler = plugin("<<name>>", "0.1.0", <<kind>>())
