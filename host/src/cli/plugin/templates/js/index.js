// Each <<kind>> has a ConfigMap with its message.
import { awaitChange, plugin, trueCondition } from "ostler";

function reconcile({ metadata, spec }, host) {
  // Say what is wanted; the host sends it only when it differs from what is there.
  host.applyOwned({
    apiVersion: "v1",
    kind: "ConfigMap",
    metadata: { name: metadata.name, namespace: metadata.namespace },
    data: { message: spec.message },
  });
  return awaitChange()
    .with(trueCondition("Ready", "Said", `it says: ${spec.message}`))
    .withStatus({ configMap: metadata.name });
}

export const reconciler = plugin({
  name: "<<name>>",
  version: "0.1.0",
  kinds: [{ group: "<<group>>", version: "<<version>>", kind: "<<kind>>", reconcile }],
});
