// The bench's operator as an Ostler plugin: a Sample becomes a ConfigMap of its name.
import { awaitChange, plugin, reference, trueCondition, wait } from "ostler";

function reconcile({ metadata: { name, namespace }, spec }, host) {
  const data = { text: spec.text };
  if (spec.config) {
    const config = host.get(reference("v1", "ConfigMap", spec.config, namespace));
    if (!config) {
      throw wait("NoConfig", "The ConfigMap does not exist");
    }
    data.value = config.data.value;
  }
  host.applyOwned({ apiVersion: "v1", kind: "ConfigMap", metadata: { name, namespace }, data });
  return awaitChange().with(trueCondition("Ready", "Applied", "The ConfigMap is there"));
}

export const reconciler = plugin({
  name: "bench-plugin",
  version: "0.1.0",
  kinds: [{ group: "bench.ostler.dev", version: "v1", kind: "Sample", reconcile }],
});
