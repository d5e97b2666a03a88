"""The host in memory: its functions have the results that they have with the mock of the Rust SDK."""

import json
import unittest
from pathlib import Path

import ostler
import ostler_wit as wit
from ostler import Kind, await_change, lifecycle_hooks, plugin, retry, true_condition
from ostler_testing import Err, TestFailure, TestHost

TABLE = json.loads((Path(__file__).parent.parent / "sdk/tests/mock/table.json").read_text())
TAGS = {
    "Denied": "denied", "NotFound": "not-found", "Conflict": "conflict", "Invalid": "invalid", "Throttled": "throttled",
    "Unavailable": "unavailable", "LimitExceeded": "limit-exceeded", "Unsupported": "unsupported",
}


def reference(of):
    return ostler.reference(of.get("apiVersion", ""), of["kind"], of.get("name"), of.get("namespace"), of.get("cluster"))


def call_host(call):
    def body(field):
        return (call.get("raw") or json.dumps(call.get(field))).encode()

    def preconditions():
        return wit.kubernetes.Preconditions(call.get("uid"), call.get("resourceVersion"))

    projection = wit.kubernetes.Projection_Full()
    if "fields" in call:
        projection = wit.kubernetes.Projection_Fields(call["fields"])
    elif call.get("metadata"):
        projection = wit.kubernetes.Projection_Metadata()
    live, owned, cluster = call.get("live", False), call.get("owned", False), call.get("cluster")
    ref = reference(call["ref"]) if "ref" in call else None
    match call["do"]:
        case "get":
            found = wit.kubernetes.get(ref, wit.kubernetes.GetOptions(live, projection))
            return None if found is None else json.loads(found)
        case "list":
            options = wit.kubernetes.ListOptions(
                cluster, call.get("namespace"), call.get("labels"), call.get("fieldSelector"), projection, call.get("limit"),
                None, live)
            return [json.loads(item) for item in wit.kubernetes.list(reference(call).gvk, options).items]
        case "requireReady":
            return json.loads(wit.kubernetes.require_ready(ref))
        case "requireCondition":
            status = wit.types.ConditionStatus[call["status"].upper()]
            return json.loads(wit.kubernetes.require_condition(ref, call["type"], status))
        case "apply":
            return json.loads(wit.kubernetes.apply(body("object"), wit.kubernetes.ApplyOptions(cluster, owned, True, [])))
        case "create":
            return json.loads(wit.kubernetes.create(body("object"), wit.kubernetes.CreateOptions(cluster, owned, [])))
        case "patch":
            return json.loads(wit.kubernetes.patch(ref, body("patch"), preconditions()))
        case "patchSubresource":
            return json.loads(wit.kubernetes.patch_subresource(ref, call["subresource"], body("patch"), preconditions()))
        case "delete":
            propagation = wit.kubernetes.Propagation[call.get("propagation", "background").upper()]
            return wit.kubernetes.delete(ref, wit.kubernetes.DeleteOptions(propagation, preconditions()))
        case "readLog":
            return wit.kubernetes.read_log(ref, wit.kubernetes.LogOptions(call.get("container"), call["tailLines"], False))
        case "hold":
            return wit.references.hold(ref)
        case "listHolders":
            return [f"{holder.gvk.kind} {holder.name}" for holder in wit.references.list_holders(ref)]
        case "acquire":
            return wit.permits.acquire(call["pool"], call["limit"], call.get("held", False))
        case "release":
            return wit.permits.release(call["pool"])
        case "digest":
            return wit.http.secret_digest(wit.types.SecretKeyRef(None, None, call["name"], call["key"]))
        case "config":
            return json.loads(wit.config.get())
        case "now":
            return wit.clock.now()
        case "send":
            upstream = wit.types.UpstreamRef(None, None, "u")
            sent = wit.http.send(wit.http.Request(upstream, wit.http.Method[call["method"]], call["path"], [], None, [], None))
            return [sent.status, sent.body.decode()]
    raise AssertionError(f"{call['do']}: no call of the table")


def make_call(call):
    try:
        return {"ok": call_host(call)}
    except Err as e:
        if isinstance(e.value, wit.types.Error_NotReady):
            other = e.value.value
            return {
                "error": "not-ready", "condition": other.condition, "exists": other.exists, "reason": other.reason,
                "message": other.message,
            }
        return {"error": TAGS[type(e.value).__name__.removeprefix("Error_")]}


def reconciling(run):
    class Caller(Kind):
        group, version, kind = "example.dev", "v1", "Caller"

        def reconcile(self, object, host):
            return run(object, host)

    return plugin("p", "1", Caller())


def run_case(case):
    host = TestHost()
    for object in case.get("objects", ()):
        host.put(object)
    for cluster, objects in case.get("objectsOn", {}).items():
        for object in objects:
            host.put_on(cluster, object)
    for hidden in case.get("hidden", ()):
        host.hide_from_cache(reference(hidden))
    for pod, container, log in case.get("logs", ()):
        host.set_log(reference(pod), container, log)
    for held, holder in case.get("holders", ()):
        host.add_holder(reference(held), reference(holder))
    for pool, count in case.get("usedPermits", {}).items():
        host.use_permits(pool, count)
    for denied in case.get("denied", ()):
        host.deny(denied)
    for secret in case.get("secrets", ()):
        host.set_secret(*secret)
    host.set_config(case.get("config", {})).set_now(case.get("now", 0))
    for answer in case.get("answers", ()):
        host.answer(*answer)
    results = []
    for calls in case["reconciles"]:
        found = []

        def run(object, _):
            found.extend(make_call(call) for call in calls if call["do"] != "fail")
            if {"do": "fail"} in calls:
                raise retry("Asked", "as asked")
            return await_change()

        try:
            host.reconcile(reconciling(run), {"metadata": {"name": "caller", "namespace": "n", "uid": "owner"}})
        except TestFailure as e:
            assert e.reason == "Asked", e
        results.append(found)
    kinds = [("v1", "ConfigMap"), ("v1", "Pod"), ("example.dev/v1", "ConfigMap")]
    return {
        "results": results, "objects": [object for kind in kinds for object in host.objects(*kind)], "writes": host.writes,
        "requests": host.requests, "held": host.held, "permits": sum(host.permits(pool) for pool in "pqr"),
    }


class Testing(unittest.TestCase):
    maxDiff = None

    def test_calls_of_the_table_have_its_results(self):
        self.assertGreater(len(TABLE), 100)
        for case in TABLE:
            with self.subTest(case["name"]):
                self.assertEqual(run_case(case), case["expect"])

    def test_outcome_and_failure_have_conditions_status_and_reason(self):
        def run(object, _):
            if object.spec.get("fails"):
                raise retry("Failed", "as asked").with_status(a=1)
            return await_change().with_(true_condition("Ready", "Done", "done")).with_status(b=2)

        host, reconciler = TestHost(), reconciling(run)
        outcome = host.reconcile(reconciler, {"metadata": {}, "spec": {}})
        self.assertEqual(outcome.conditions, [true_condition("Ready", "Done", "done")])
        self.assertEqual((outcome.status, outcome.next), ({"b": 2}, wit.reconciler.Next_AwaitChange()))
        with self.assertRaises(TestFailure) as raised:
            host.reconcile(reconciler, {"metadata": {}, "spec": {"fails": True}})
        self.assertEqual((raised.exception.reason, raised.exception.status), ("Failed", {"a": 1}))
        self.assertEqual(host.cleanup(reconciler, {}).next, wit.reconciler.Next_AwaitChange())

    def test_integer_of_64_bits_arrives_and_leaves_as_it_is(self):
        def run(object, host):
            host.apply_owned({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "big": object.spec["big"]})
            return await_change().with_status(big=object.spec["big"])

        host = TestHost()
        outcome = host.reconcile(reconciling(run), {"spec": {"big": 9223372036854775807}})
        self.assertEqual(outcome.status, {"big": 9223372036854775807})
        self.assertEqual(host.objects("v1", "ConfigMap")[0]["big"], 9223372036854775807)

    def test_request_without_a_response_is_named_and_a_denied_function_fails(self):
        host, reconciler = TestHost(), reconciling(lambda _, host: await_change().with_status(**host.upstream("u").get("/a").json()))
        with self.assertRaisesRegex(AssertionError, "unexpected request: GET /a"):
            host.reconcile(reconciler, {})
        host.answer("GET", "/a", 200, {"x": 1})
        self.assertEqual(host.reconcile(reconciler, {}).status, {"x": 1})
        host.deny("http.send")
        with self.assertRaises(TestFailure) as raised:
            host.reconcile(reconciler, {})
        self.assertEqual(raised.exception.reason, "PermissionDenied")

    def test_hooks_prepare_the_plugin_and_upgrade_objects(self):
        def initialize(host):
            host.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}})

        def upgrade(object, host):
            if object["spec"].get("old"):
                raise retry("Busy", "not now")
            if object["spec"].get("done"):
                return None
            return {**object, "metadata": {**object["metadata"], "labels": {"done": "yes"}}}

        host, lifecycle = TestHost(), lifecycle_hooks(initialize, upgrade)
        host.initialize(lifecycle)
        self.assertEqual(host.writes, ["apply ConfigMap a"])
        upgraded = host.upgrade(lifecycle, {"spec": {}, "metadata": {"name": "x"}})
        self.assertEqual(upgraded["metadata"], {"name": "x", "labels": {"done": "yes"}})
        self.assertIsNone(host.upgrade(lifecycle, {"spec": {"done": True}}))
        with self.assertRaises(Err) as raised:
            host.upgrade(lifecycle, {"spec": {"old": True}})
        self.assertEqual(raised.exception.value, wit.types.Error_Unavailable("not now"))
        host.deny("kubernetes.apply")
        with self.assertRaises(Err):
            host.initialize(lifecycle)
        host.initialize(lifecycle_hooks())


if __name__ == "__main__":
    unittest.main()
