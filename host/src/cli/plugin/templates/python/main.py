"""Each <<kind>> has a ConfigMap with its message."""

from dataclasses import dataclass
from typing import Annotated

<<without messages>>
<<without finalizer>>
from ostler import Kind, await_change, column, plugin, schema, true_condition
<<with finalizer>>
from ostler import Kind, await_change, column, plugin, reference, schema, true_condition
<<end>>
<<with messages>>
<<without finalizer>>
from ostler import HostError, Kind, ack, await_change, column, message_handler, plugin, reject, schema, true_condition
<<with finalizer>>
from ostler import (
    HostError, Kind, ack, await_change, column, message_handler, plugin, reference, reject, schema, true_condition,
)
<<end>>
<<end>>


@dataclass
class <<kind>>Spec:
    """A message, kept in a ConfigMap of the same name."""

    message: Annotated[str, schema(min_length=1)]
    """Text of the ConfigMap."""


@dataclass
class <<kind>>Status:
    """Observed state of a <<kind>>."""

    config_map: str | None = None
    """The ConfigMap that has the message."""


class <<kind>>(Kind):
    group, version, kind = "<<group>>", "<<version>>", "<<kind>>"
    spec, status = <<kind>>Spec, <<kind>>Status
    columns = [
        column("Message", ".spec.message"),
        column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
    ]
<<with finalizer>>
    finalizer = "<<group>>/<<singular>>"
<<end>>

    def reconcile(self, object, host):
        # Apply the desired object; the host sends it only if it differs from the live one.
<<without finalizer>>
        host.apply_owned({
<<with finalizer>>
        # It is not owned, so that Kubernetes does not delete it with its object: the cleanup does.
        host.apply({
<<end>>
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": object.name, "namespace": object.namespace},
            "data": {"message": object.spec.message},
        })
        ready = true_condition("Ready", "Applied", f"message applied: {object.spec.message}")
        return await_change().with_(ready).with_status(<<kind>>Status(config_map=object.name))
<<with finalizer>>

    def cleanup(self, object, host):
        """Deletes what `reconcile` has made outside of the object. It may run more than once, until it has succeeded."""
        host.delete(reference("v1", "ConfigMap", object.name, object.namespace))
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
