"""The example that exists in four languages: copies a page of an upstream to a ConfigMap."""

from ostler import Kind, await_change, false_condition, plugin, poll, retry, terminal, true_condition


class Bookmark(Kind):
    group, version, kind = "examples.ostler.dev", "v1alpha1", "Bookmark"
    finalizer = "examples.ostler.dev/bookmark"

    def reconcile(self, bookmark, host):
        metadata, spec = bookmark["metadata"], bookmark["spec"]
        if not spec["path"].startswith("/"):
            raise terminal("InvalidPath", f"spec.path: {spec['path']} does not start with /")
        response = host.upstream(spec["upstream"]).get(spec["path"])
        summary = f"GET {spec['path']} was answered with {response.status}"
        if not response.ok:
            raise retry("UnexpectedAnswer", summary).with_(false_condition("Reachable", "UnexpectedAnswer", summary))
        host.apply_owned({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "data": {"title": spec["title"], "page": response.text()},
        })
        return (
            poll(spec["every"] * 1000 if spec.get("every") else None)
            .with_(true_condition("Ready", "Kept", f"{spec['title']} is kept"))
            .with_(true_condition("Reachable", "Answered", summary))
            .with_status(httpStatus=response.status, bytes=len(response.body))
        )

    def cleanup(self, bookmark, host):
        spec = bookmark["spec"]
        if spec["path"].startswith("/"):
            response = host.upstream(spec["upstream"]).delete(spec["path"])
            if not response.ok and response.status != 404:
                raise retry("UnexpectedAnswer", f"DELETE {spec['path']} was answered with {response.status}")
        host.event("Forgotten", f"{spec['title']} is forgotten")
        return await_change()


Reconciler = plugin("bookmark-python", "0.1.0", Bookmark())
