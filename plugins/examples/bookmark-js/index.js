// The example that exists in four languages: copies a page of an upstream to a ConfigMap.
import { awaitChange, falseCondition, plugin, poll, retry, terminal, trueCondition } from "ostler";

function reconcile({ metadata, spec }, host) {
  if (!spec.path.startsWith("/")) {
    throw terminal("InvalidPath", `spec.path: ${spec.path} does not start with /`);
  }
  const response = host.upstream(spec.upstream).get(spec.path);
  const summary = `GET ${spec.path} was answered with ${response.status}`;
  if (!response.ok) {
    throw retry("UnexpectedAnswer", summary).with(falseCondition("Reachable", "UnexpectedAnswer", summary));
  }
  host.applyOwned({
    apiVersion: "v1",
    kind: "ConfigMap",
    metadata: { name: metadata.name, namespace: metadata.namespace },
    data: { title: spec.title, page: response.text() },
  });
  return poll(spec.every && spec.every * 1000)
    .with(trueCondition("Ready", "Kept", `${spec.title} is kept`))
    .with(trueCondition("Reachable", "Answered", summary))
    .withStatus({ httpStatus: response.status, bytes: response.body.length });
}

function cleanup({ spec }, host) {
  if (spec.path.startsWith("/")) {
    const response = host.upstream(spec.upstream).delete(spec.path);
    if (!response.ok && response.status !== 404) {
      throw retry("UnexpectedAnswer", `DELETE ${spec.path} was answered with ${response.status}`);
    }
  }
  host.event("Forgotten", `${spec.title} is forgotten`);
  return awaitChange();
}

export const reconciler = plugin({
  name: "bookmark-js",
  version: "0.1.0",
  kinds: [
    {
      group: "examples.ostler.dev",
      version: "v1alpha1",
      kind: "Bookmark",
      finalizer: "examples.ostler.dev/bookmark",
      reconcile,
      cleanup,
    },
  ],
});
