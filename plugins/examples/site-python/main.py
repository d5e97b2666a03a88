"""The example of provisioning that exists in four languages: a text, and a Service if it is public."""

from ostler import Kind, plugin, reference
from ostler_provision import Dependency, Resource, serial, step, when


def steps(site):
    owner, spec = site["metadata"], site["spec"]
    metadata = {"name": owner["name"], "namespace": owner["namespace"]}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": spec["text"]}}
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"selector": {"app": owner["name"]}, "ports": [{"port": 80}]},
    }
    after = reference("examples.ostler.dev/v1alpha1", "Site", spec.get("after"), owner["namespace"])
    return serial(
        when(spec.get("after"), step("SiteReady", Dependency(after, ready_when="Ready", held=True))),
        step("TextApplied", Resource(owner, config_map)),
        when(spec.get("public"), step("ServiceApplied", Resource(owner, service))),
    )


class Site(Kind):
    group, version, kind = "examples.ostler.dev", "v1alpha1", "Site"
    finalizer = "examples.ostler.dev/site"

    def reconcile(self, site, host):
        return steps(site).provision(host)

    def cleanup(self, site, host):
        return steps(site).deprovision(host)


Reconciler = plugin("site-python", "0.1.0", Site())
