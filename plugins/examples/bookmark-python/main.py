"""The example of four languages: what an upstream says at a path is kept in a ConfigMap."""

from ostler import Kind, await_change, false_condition, plugin, poll, retry, terminal, true_condition


class Bookmark(Kind):
    group, version, kind = "examples.ostler.dev", "v1alpha1", "Bookmark"
    finalizer = "examples.ostler.dev/bookmark"

    def reconcile(self, bookmark, host):
        metadata, spec = bookmark["metadata"], bookmark["spec"]
        if not spec["path"].startswith("/"):
            raise terminal("InvalidPath", f"spec.path: {spec['path']} does not start with /")
        answer = host.upstream(spec["upstream"]).get(spec["path"])
        said = f"GET {spec['path']} was answered with {answer.status}"
        if not answer.ok:
            raise retry("UnexpectedAnswer", said).with_(false_condition("Reachable", "UnexpectedAnswer", said))
        host.apply_owned({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "data": {"title": spec["title"], "page": answer.text()},
        })
        return (
            poll(spec["every"] * 1000 if spec.get("every") else None)
            .with_(true_condition("Ready", "Kept", f"{spec['title']} is kept"))
            .with_(true_condition("Reachable", "Answered", said))
            .with_status(httpStatus=answer.status, bytes=len(answer.body))
        )

    def cleanup(self, bookmark, host):
        spec = bookmark["spec"]
        if spec["path"].startswith("/"):
            answer = host.upstream(spec["upstream"]).delete(spec["path"])
            if not answer.ok and answer.status != 404:
                raise retry("UnexpectedAnswer", f"DELETE {spec['path']} was answered with {answer.status}")
        host.event("Forgotten", f"{spec['title']} is forgotten")
        return await_change()


Reconciler = plugin("bookmark-python", "0.1.0", Bookmark())
