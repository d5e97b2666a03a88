"""The bench's operator as an Ostler plugin: a Sample becomes a ConfigMap of its name."""

from ostler import Kind, await_change, plugin, reference, true_condition, wait


class Sample(Kind):
    group, version, kind = "bench.ostler.dev", "v1", "Sample"

    def reconcile(self, sample, host):
        name, namespace = sample["metadata"]["name"], sample["metadata"]["namespace"]
        data = {"text": sample["spec"]["text"]}
        if sample["spec"].get("config"):
            config = host.get(reference("v1", "ConfigMap", sample["spec"]["config"], namespace))
            if config is None:
                raise wait("NoConfig", "The ConfigMap does not exist")
            data["value"] = config["data"]["value"]
        host.apply_owned({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": data,
        })
        return await_change().with_(true_condition("Ready", "Applied", "The ConfigMap is there"))


Reconciler = plugin("bench-plugin", "0.1.0", Sample())
