// Each <<kind>> has a ConfigMap with its message.
<<without messages>>
import { awaitChange, plugin, trueCondition } from "ostler";
<<with messages>>
import { ack, awaitChange, messageHandler, plugin, reject, trueCondition } from "ostler";
<<end>>

function reconcile({ metadata, spec }, host) {
  // Apply the desired object; the host sends it only if it differs from the live one.
  host.applyOwned({
    apiVersion: "v1",
    kind: "ConfigMap",
    metadata: { name: metadata.name, namespace: metadata.namespace },
    data: { message: spec.message },
  });
  return awaitChange()
    .with(trueCondition("Ready", "Applied", `message applied: ${spec.message}`))
    .withStatus({ configMap: metadata.name });
}

export const reconciler = plugin({
  name: "<<name>>",
  version: "0.1.0",
  kinds: [{ group: "<<group>>", version: "<<version>>", kind: "<<kind>>", reconcile }],
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
