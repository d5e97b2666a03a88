// The example of provisioning that exists in four languages: a text, and a Service if it is public.
import { plugin, reference } from "ostler";
import { dependency, resource, serial, step, when } from "ostler/provision";

const [group, version, kind] = ["examples.ostler.dev", "v1alpha1", "Site"];

function steps({ metadata: owner, spec }) {
  const metadata = { name: owner.name, namespace: owner.namespace };
  const configMap = { apiVersion: "v1", kind: "ConfigMap", metadata, data: { text: spec.text } };
  const service = {
    apiVersion: "v1", kind: "Service", metadata, spec: { selector: { app: owner.name }, ports: [{ port: 80 }] },
  };
  const after = reference(`${group}/${version}`, kind, spec.after, owner.namespace);
  return serial(
    when(spec.after, step("SiteReady", dependency(after, { readyWhen: "Ready", held: true }))),
    step("TextApplied", resource(owner, configMap)),
    when(spec.public, step("ServiceApplied", resource(owner, service))),
  );
}

export const reconciler = plugin({
  name: "site-js",
  version: "0.1.0",
  kinds: [
    {
      group,
      version,
      kind,
      finalizer: "examples.ostler.dev/site",
      reconcile: (site, host) => steps(site).provision(host),
      cleanup: (site, host) => steps(site).deprovision(host),
    },
  ],
});
