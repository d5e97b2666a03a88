// The example of four languages: what an upstream says at a path is kept in a ConfigMap.
import { awaitChange, falseCondition, plugin, poll, retry, terminal, trueCondition } from "ostler";

function reconcile({ metadata, spec }, host) {
  if (!spec.path.startsWith("/")) {
    throw terminal("InvalidPath", `spec.path: ${spec.path} does not start with /`);
  }
  const answer = host.upstream(spec.upstream).get(spec.path);
  const said = `GET ${spec.path} was answered with ${answer.status}`;
  if (!answer.ok) {
    throw retry("UnexpectedAnswer", said).with(falseCondition("Reachable", "UnexpectedAnswer", said));
  }
  host.applyOwned({
    apiVersion: "v1",
    kind: "ConfigMap",
    metadata: { name: metadata.name, namespace: metadata.namespace },
    data: { title: spec.title, page: answer.text() },
  });
  return poll(spec.every && spec.every * 1000)
    .with(trueCondition("Ready", "Kept", `${spec.title} is kept`))
    .with(trueCondition("Reachable", "Answered", said))
    .withStatus({ httpStatus: answer.status, bytes: answer.body.length });
}

function cleanup({ spec }, host) {
  if (spec.path.startsWith("/")) {
    const answer = host.upstream(spec.upstream).delete(spec.path);
    if (!answer.ok && answer.status !== 404) {
      throw retry("UnexpectedAnswer", `DELETE ${spec.path} was answered with ${answer.status}`);
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
