"""Each <<kind>> has a ConfigMap with its message."""

<<without messages>>
from ostler import Kind, await_change, plugin, true_condition
<<with messages>>
from ostler import HostError, Kind, ack, await_change, message_handler, plugin, reject, true_condition
<<end>>


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
