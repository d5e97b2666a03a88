// Each <<kind>> has a ConfigMap with its message.
<<without messages>>
<<without finalizer>>
import { awaitChange, plugin, trueCondition } from "ostler";
<<with finalizer>>
import { awaitChange, plugin, reference, trueCondition } from "ostler";
<<end>>
<<with messages>>
<<without finalizer>>
import { ack, awaitChange, messageHandler, plugin, reject, trueCondition } from "ostler";
<<with finalizer>>
import { ack, awaitChange, messageHandler, plugin, reference, reject, trueCondition } from "ostler";
<<end>>
<<end>>

/**
 * A message, kept in a ConfigMap of the same name.
 * @typedef {object} <<kind>>Spec
 * @property {string} message Text of the ConfigMap. {@minLength 1}
 */

/**
 * Observed state of a <<kind>>.
 * @typedef {object} <<kind>>Status
 * @property {string} [configMap] The ConfigMap that has the message.
 */

/** @type {import("ostler").Reconcile<<<kind>>Spec, <<kind>>Status>} */
function reconcile({ metadata, spec }, host) {
  // Apply the desired object; the host sends it only if it differs from the live one.
<<without finalizer>>
  host.applyOwned({
<<with finalizer>>
  // It is not owned, so that Kubernetes does not delete it with its object: the cleanup does.
  host.apply({
<<end>>
    apiVersion: "v1",
    kind: "ConfigMap",
    metadata: { name: metadata.name, namespace: metadata.namespace },
    data: { message: spec.message },
  });
  return awaitChange()
    .with(trueCondition("Ready", "Applied", `message applied: ${spec.message}`))
    .withStatus({ configMap: metadata.name });
}

<<with finalizer>>
// Deletes what `reconcile` has made outside of the object. It may run more than once, until it has succeeded.
/** @type {import("ostler").Reconcile<<<kind>>Spec, <<kind>>Status>} */
function cleanup({ metadata }, host) {
  host.delete(reference("v1", "ConfigMap", metadata.name, metadata.namespace));
  return awaitChange();
}

<<end>>
export const reconciler = plugin({
  name: "<<name>>",
  version: "0.1.0",
  kinds: [
    {
      group: "<<group>>",
      version: "<<version>>",
      kind: "<<kind>>",
      columns: [
        { name: "Message", jsonPath: ".spec.message" },
        { name: "Ready", jsonPath: '.status.conditions[?(@.type=="Ready")].status' },
      ],
<<with finalizer>>
      finalizer: "<<group>>/<<singular>>",
<<end>>
      reconcile,
<<with finalizer>>
      cleanup,
<<end>>
    },
  ],
});
<<with messages>>

// Creates the <<kind>> that a message asks for. A message may be delivered more than once: the second time, the object is
// there.
export const messages = messageHandler((delivery, host) => {
  let request;
  try {
    request = delivery.json();
  } catch (error) {
    return reject(`the body is no JSON: ${error.message}`);
  }
  try {
    host.create({
      apiVersion: "<<group>>/<<version>>",
      kind: "<<kind>>",
      metadata: { name: request.name, namespace: delivery.broker.namespace },
      spec: { message: request.message },
    });
  } catch (error) {
    if (error.tag !== "conflict") throw error;
  }
  return ack();
});
<<end>>
