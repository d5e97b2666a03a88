"""Each <<kind>> has a ConfigMap with its message."""

<<without messages>>
<<without finalizer>>
from ostler import Kind, await_change, plugin, true_condition
<<with finalizer>>
from ostler import Kind, await_change, plugin, reference, true_condition
<<end>>
<<with messages>>
<<without finalizer>>
from ostler import HostError, Kind, ack, await_change, message_handler, plugin, reject, true_condition
<<with finalizer>>
from ostler import HostError, Kind, ack, await_change, message_handler, plugin, reference, reject, true_condition
<<end>>
<<end>>


class <<kind>>(Kind):
    group, version, kind = "<<group>>", "<<version>>", "<<kind>>"
<<with finalizer>>
    finalizer = "<<group>>/<<singular>>"
<<end>>

    def reconcile(self, object, host):
        metadata, spec = object["metadata"], object["spec"]
        # Apply the desired object; the host sends it only if it differs from the live one.
<<without finalizer>>
        host.apply_owned({
<<with finalizer>>
        # It is not owned, so that Kubernetes does not delete it with its object: the cleanup does.
        host.apply({
<<end>>
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "data": {"message": spec["message"]},
        })
        ready = true_condition("Ready", "Applied", f"message applied: {spec['message']}")
        return await_change().with_(ready).with_status(configMap=metadata["name"])
<<with finalizer>>

    def cleanup(self, object, host):
        """Deletes what `reconcile` has made outside of the object. It may run more than once, until it has succeeded."""
        metadata = object["metadata"]
        host.delete(reference("v1", "ConfigMap", metadata["name"], metadata["namespace"]))
        return await_change()
<<end>>


<<with messages>>
def handle(delivery, host):
    """Creates the <<kind>> that a message asks for. A message may be delivered more than once: the second time, the object
    is there."""
    try:
        request = delivery.json()
    except ValueError as error:
        return reject(f"the body is no JSON: {error}")
    try:
        host.create({
            "apiVersion": "<<group>>/<<version>>",
            "kind": "<<kind>>",
            "metadata": {"name": request["name"], "namespace": delivery.broker.namespace},
            "spec": {"message": request["message"]},
        })
    except HostError as error:
        if not error.is_conflict:
            raise
    return ack()


Messages = message_handler(handle)
<<end>>
Reconciler = plugin("<<name>>", "0.1.0", <<kind>>())
