// Each <<kind>> has a ConfigMap with its message.
import { awaitChange, plugin, trueCondition } from "ostler";

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
