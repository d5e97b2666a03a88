"""The bench's operator with Kopf: a Sample becomes a ConfigMap of its name."""

import datetime

import kopf
from kubernetes_asyncio import client, config


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, memo: kopf.Memo, **_):
    # No `worker_limit`: it would limit objects, each of which occupies its worker for seconds.
    # An Event per handler would be an additional request for each object.
    settings.posting.enabled = False
    await config.load_kube_config()
    memo.api = client.CoreV1Api()


@kopf.on.cleanup()
async def close(memo: kopf.Memo, **_):
    await memo.api.api_client.close()


@kopf.on.resume("bench.ostler.dev", "v1", "samples")
@kopf.on.create("bench.ostler.dev", "v1", "samples")
@kopf.on.update("bench.ostler.dev", "v1", "samples")
async def reconcile(spec, meta, status, patch, memo: kopf.Memo, **_):
    data = {"text": spec["text"]}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": meta.name}, "data": data}
    kopf.adopt(body)
    try:
        await memo.api.create_namespaced_config_map(meta.namespace, body)
    except client.ApiException as e:
        if e.status != 409:
            raise
        await memo.api.replace_namespaced_config_map(meta.name, meta.namespace, body)
    if status.get("observedGeneration") != meta["generation"]:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        patch.status["observedGeneration"] = meta["generation"]
        patch.status["conditions"] = [
            {
                "type": "Ready",
                "status": "True",
                "observedGeneration": meta["generation"],
                "lastTransitionTime": now,
                "reason": "Applied",
                "message": "The ConfigMap is there",
            }
        ]
