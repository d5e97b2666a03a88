"""The composition of steps, and the parts Resource and Dependency against a fake of the host functions."""

import json
import sys
import unittest
from dataclasses import dataclass, make_dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock


def _cases(prefix, names, bare=()):
    """The classes of a variant, as the generated bindings have them."""
    made = {f"{prefix}_{name}": make_dataclass(f"{prefix}_{name}", [] if name in bare else ["value"]) for name in names}
    return SimpleNamespace(**made)


ConditionStatus = Enum("ConditionStatus", ["TRUE", "FALSE", "UNKNOWN"], start=0)
Propagation = Enum("Propagation", ["BACKGROUND", "FOREGROUND", "ORPHAN"], start=0)


@dataclass
class Err(Exception):
    value: object


def _fake_modules():
    """There is no host, so the modules of its functions are replaced."""
    imports = MagicMock()
    errors = _cases("Error", [
        "Denied", "NotFound", "Conflict", "Invalid", "Throttled", "Unavailable", "NotReady", "LimitExceeded", "Unsupported"])
    imports.types = SimpleNamespace(
        **vars(errors), ConditionStatus=ConditionStatus,
        Condition=make_dataclass("Condition", ["type", "status", "reason", "message"]),
        Gvk=make_dataclass("Gvk", ["group", "version", "kind"]),
        ObjectRef=make_dataclass("ObjectRef", ["gvk", "cluster", "namespace", "name"]),
        NotReady=make_dataclass("NotReady", ["ref", "condition", "status", "exists", "reason", "message"]))
    imports.kubernetes = SimpleNamespace(
        Propagation=Propagation,
        Projection_Full=make_dataclass("Projection_Full", []), Projection_Metadata=make_dataclass("Projection_Metadata", []),
        GetOptions=make_dataclass("GetOptions", ["live", "projection"]),
        ApplyOptions=make_dataclass("ApplyOptions", ["cluster", "owned", "force", "substitutions"]),
        Preconditions=make_dataclass("Preconditions", ["uid", "resource_version"]),
        DeleteOptions=make_dataclass("DeleteOptions", ["propagation", "preconditions"]))
    names = ["Retry", "Throttled", "Wait", "Denied", "Terminal"]
    resolutions = _cases("Resolution", names, bare=["Retry", "Wait", "Terminal"])
    reconciler = SimpleNamespace(
        **vars(resolutions), Next_AwaitChange=make_dataclass("Next_AwaitChange", []))
    exports = SimpleNamespace(Reconciler=object, Messages=object, reconciler=reconciler, messages=MagicMock())
    return imports, {
        "componentize_py_types": SimpleNamespace(Err=Err),
        "wit_world": SimpleNamespace(exports=exports, imports=imports),
        "wit_world.exports": exports, "wit_world.imports": imports,
    }


imports, modules = _fake_modules()
sys.modules.update(modules)
types, reconciler = imports.types, modules["wit_world.exports"].reconciler

from ostler import Failure, HostError, Host, reference, terminal, wait, with_public_message  # noqa: E402
from ostler_provision import (  # noqa: E402
    OWNER_LABEL, Dependency, Resource, concurrent, serial, step, wait_for_foreground_deletion, when,
)

TABLE = Path(__file__).parent.parent / "sdk/tests/provision/table.json"


def parse_conditions(rows):
    return [types.Condition(type, ConditionStatus[status.upper()], reason, message)
            for type, status, reason, message in rows]


def camel_case(text):
    return "".join(word.capitalize() for word in text.split("-"))


def parse_result(result):
    """Returns the failure, or the error of the host, that the table has."""
    if "error" in result:
        return HostError(getattr(types, f"Error_{camel_case(result['error'])}")(result["value"]))
    resolution = getattr(reconciler, f"Resolution_{result['resolution'].capitalize()}")
    values = [result[key] for key in ("milliseconds", "grant") if key in result]
    failure = Failure(resolution(*values), result["reason"], result["message"])
    failure.conditions = parse_conditions(result.get("conditions", []))
    return failure.with_status(**result["status"]) if "status" in result else failure


class Part:
    """A part that records its calls, and ends with a result."""

    def __init__(self, name="", calls=None, result=None):
        self.name, self.calls, self.result = name, calls if calls is not None else [], result

    def record(self, sign):
        self.calls.append(sign + self.name)
        if self.result:
            raise self.result

    def provision(self, host):
        self.record("+")

    def deprovision(self, host):
        self.record("-")


class Composition(unittest.TestCase):
    def test_steps_run_as_in_the_table_of_all_languages(self):
        cases = json.loads(TABLE.read_text())["cases"]
        self.assertTrue(cases)
        for case in cases:
            with self.subTest(case["name"]):
                self.check(case)

    def build(self, case, tree, calls):
        match tree:
            case {"step": name}:
                result = case["results"].get(name)
                return step(name, Part(name, calls, result and parse_result(result)))
            case {"serial": trees}:
                return serial(*(self.build(case, tree, calls) for tree in trees))
            case {"concurrent": trees}:
                return concurrent(*(self.build(case, tree, calls) for tree in trees))
        return when(tree["when"], self.build(case, tree["tree"], calls))

    def check(self, case):
        calls = []
        run = getattr(self.build(case, case["tree"], calls), case["direction"])
        if case["failure"] is None:
            ended = run(Host())
            self.assertEqual(ended.next, reconciler.Next_AwaitChange())
        else:
            with self.assertRaises(Failure) as raised:
                run(Host())
            ended, expected = raised.exception, parse_result(case["failure"])
            for field in ("resolution", "reason", "message", "status"):
                self.assertEqual(getattr(ended, field), getattr(expected, field), field)
        self.assertEqual(ended.conditions, parse_conditions(case["conditions"]))
        self.assertEqual(calls, case["calls"])

    def test_exception_in_a_step_is_a_bug_and_no_failure(self):
        with self.assertRaises(KeyError):
            step("A", Part(result=KeyError("missing"))).provision(Host())
        part = SimpleNamespace(
            provision=lambda host: wait("Because", "Not yet."), deprovision=lambda host: SimpleNamespace(__await__=None))
        with self.assertRaisesRegex(TypeError, "provision returned a Failure: raise it"):
            step("A", part).provision(Host())
        with self.assertRaisesRegex(TypeError, "deprovision returned an awaitable"):
            step("A", part).deprovision(Host())

    def test_failure_that_a_step_raises_again_is_not_changed(self):
        kept = wait("Because", "Not yet.")
        for _ in range(2):
            with self.assertRaises(Failure) as raised:
                concurrent(step("A", Part(result=kept)), step("B", Part(result=kept))).provision(Host())
            self.assertEqual(raised.exception.message, "A: Not yet. B: Not yet.")
        self.assertEqual((kept.message, kept.conditions), ("Not yet.", []))


def key(kind, namespace, name, cluster):
    return f"{kind} {namespace} {name}" + (f" on {cluster}" if cluster else "")


def key_of(ref):
    return key(ref.gvk.kind, ref.namespace, ref.name, ref.cluster)


class FakeHost:
    """The host functions, with objects by cluster, kind, namespace and name. A kept object stays with a deletion timestamp when
    it is deleted, as one with finalizers does."""

    def __init__(self):
        self.objects, self.calls, self.applied, self.keeps = {}, [], [], False
        for name in ("get", "apply", "require_condition", "delete"):
            setattr(imports.kubernetes, name, getattr(self, name))
        imports.references.hold = self.hold

    def get(self, ref, options):
        is_full = isinstance(options.projection, imports.kubernetes.Projection_Full)
        self.calls.append(f"{'get' if is_full else 'get-metadata'} {key_of(ref)}")
        found = self.objects.get(key_of(ref))
        return None if found is None else json.dumps(found).encode()

    def apply(self, text, options):
        object = json.loads(text)
        metadata = object["metadata"]
        at = key(object["kind"], metadata["namespace"], metadata["name"], options.cluster)
        self.calls.append(f"apply {at}")
        self.applied.append(options)
        metadata["uid"] = f"uid-of-{metadata['name']}"
        if options.owned and options.cluster:
            metadata["labels"] = {"ostler.dev/owner-uid": "u-1"}
        elif options.owned:
            metadata["ownerReferences"] = [{"uid": "u-1"}]
        object["status"] = self.objects.get(at, {}).get("status")
        self.objects[at] = object
        return json.dumps(object).encode()

    def require_condition(self, ref, type, status):
        self.calls.append(f"require {type} {key_of(ref)}")
        found = self.objects.get(key_of(ref))
        if found and status == ConditionStatus.TRUE and found.get("status") == type:
            return json.dumps(found).encode()
        raise Err(types.Error_NotReady(types.NotReady(ref, type, status, found is not None, "", "")))

    def delete(self, ref, options):
        self.calls.append(f"delete {options.propagation.name.lower()} {options.preconditions.uid} {key_of(ref)}")
        if self.keeps:
            self.objects[key_of(ref)]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        else:
            del self.objects[key_of(ref)]

    def hold(self, ref):
        self.calls.append(f"hold {key_of(ref)}")
        if key_of(ref) not in self.objects:
            raise Err(types.Error_NotFound(key_of(ref)))


OWNER = {"name": "a", "namespace": "n", "uid": "u-1"}
HERE = "ConfigMap n m"


def config_map(namespace="n", **metadata):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": namespace, **metadata}}


class Parts(unittest.TestCase):
    def setUp(self):
        self.host = FakeHost()

    def assert_calls(self, *expected):
        self.assertEqual(self.host.calls, [*expected])
        self.host.calls.clear()

    def assert_fails(self, function, resolution, reason):
        with self.assertRaises((Failure, HostError)) as raised:
            function(Host())
        failure = raised.exception
        failure = failure.failure() if isinstance(failure, HostError) else failure
        self.assertEqual((type(failure.resolution).__name__, failure.reason), (f"Resolution_{resolution}", reason))
        return failure.message

    def test_resource_is_applied_after_a_read_and_deleted_with_its_uid(self):
        part = Resource(OWNER, config_map())
        part.provision(Host())
        self.assert_calls(f"get {HERE}", f"apply {HERE}")
        self.assertEqual(self.host.applied, [imports.kubernetes.ApplyOptions(None, True, True, [])])
        part.deprovision(Host())
        self.assert_calls(f"get-metadata {HERE}", f"delete foreground uid-of-m {HERE}", f"get-metadata {HERE}")
        part.deprovision(Host())
        self.assert_calls(f"get-metadata {HERE}")

    def test_resource_of_another_owner_is_neither_changed_nor_deleted(self):
        for owners in (None, [{"uid": "u-0"}]):
            self.host.objects[HERE] = config_map(ownerReferences=owners)
            part = Resource(OWNER, config_map())
            self.assert_fails(part.provision, "Terminal", "NotOwned")
            self.assert_calls(f"get {HERE}")
            part.deprovision(Host())
            self.assert_calls(f"get-metadata {HERE}")
            # An owner without a uid owns nothing.
            self.assert_fails(Resource({"namespace": "n"}, config_map()).provision, "Terminal", "NotOwned")
            self.assert_calls(f"get {HERE}")
        Resource(OWNER, config_map(), adopt=True).provision(Host())
        self.assert_calls(f"get {HERE}", f"apply {HERE}")

    def test_resource_in_another_namespace_belongs_to_its_owner_by_label(self):
        object = config_map("other", labels={"app": "m"})
        part = Resource(OWNER, object)
        part.provision(Host())
        applied = self.host.objects["ConfigMap other m"]["metadata"]
        self.assertEqual(applied["labels"], {"app": "m", OWNER_LABEL: "u-1"})
        self.assertFalse(self.host.applied[0].owned)
        self.assertEqual(object["metadata"]["labels"], {"app": "m"}, "the object of the plugin is not changed")
        part.deprovision(Host())
        self.assertEqual(self.host.objects, {})
        # A cluster-scoped owner can own objects in any namespace.
        Resource({"name": "a", "uid": "u-1"}, config_map("other")).provision(Host())
        self.assertTrue(self.host.applied[1].owned)

    def test_deletion_is_waited_for_until_the_resource_is_gone(self):
        part = Resource(OWNER, config_map())
        part.provision(Host())
        self.host.calls.clear()
        self.host.keeps = True
        self.assert_fails(part.deprovision, "Wait", "Deprovisioning")
        self.assert_calls(f"get-metadata {HERE}", f"delete foreground uid-of-m {HERE}", f"get-metadata {HERE}")
        self.assert_fails(part.deprovision, "Wait", "Deprovisioning")
        self.assert_calls(f"get-metadata {HERE}")
        # It is not applied to what is being deleted.
        self.assert_fails(part.provision, "Wait", "Deprovisioning")
        self.assert_calls(f"get {HERE}")

    def test_resource_is_ready_by_a_condition_or_by_a_function(self):
        available = Resource(OWNER, config_map(), ready_when="Available")
        message = self.assert_fails(available.provision, "Wait", "Provisioning")
        self.assertEqual(message, "ConfigMap m is not Available yet.")
        self.assert_calls(f"get {HERE}", f"apply {HERE}", f"require Available {HERE}")
        self.host.objects[HERE]["status"] = "Available"
        available.provision(Host())
        bound = Resource(OWNER, config_map(), ready_if=lambda live: live["status"] == "Bound")
        self.assert_fails(bound.provision, "Wait", "Provisioning")
        self.host.objects[HERE]["status"] = "Bound"
        bound.provision(Host())

        def fail(_):
            raise terminal("Lost", "")

        self.assert_fails(Resource(OWNER, config_map(), ready_if=fail).provision, "Terminal", "Lost")
        with self.assertRaisesRegex(TypeError, "ready_if returned a Failure"):
            Resource(OWNER, config_map(), ready_if=lambda _: wait("Because", "Not yet.")).provision(Host())

    def test_resource_on_another_cluster_belongs_to_its_owner_by_the_mark_of_the_host(self):
        there = "ConfigMap other m on fleet/east"
        part = Resource(OWNER, config_map("other"), cluster="fleet/east")
        part.provision(Host())
        self.assert_calls(f"get {there}", f"apply {there}")
        self.assertTrue(self.host.applied[0].owned)
        metadata = self.host.objects[there]["metadata"]
        self.assertEqual(metadata["labels"], {"ostler.dev/owner-uid": "u-1"})
        # One without the mark belongs to somebody there; the host decides about one with another mark.
        metadata["labels"] = {}
        self.assert_fails(part.provision, "Terminal", "NotOwned")
        part.deprovision(Host())
        self.assert_calls(f"get {there}", f"get-metadata {there}")
        metadata["labels"] = {"ostler.dev/owner-uid": "u-2"}
        part.deprovision(Host())
        part.provision(Host())
        self.assert_calls(f"get-metadata {there}", f"get {there}", f"apply {there}")
        part.deprovision(Host())
        self.assertEqual(self.host.objects, {})

    def test_dependency_is_held_before_it_is_ready(self):
        ref = reference("v1", "ConfigMap", "m", "n")
        self.assert_fails(Dependency(ref).provision, "Wait", "NotFound")
        self.assert_calls(f"get-metadata {HERE}")
        ready = Dependency(ref, ready_when="Ready", held=True)
        self.assert_fails(ready.provision, "Wait", "NotFound")
        self.assert_calls(f"hold {HERE}")
        self.host.objects[HERE] = config_map()
        self.assert_fails(ready.provision, "Wait", "DependencyNotReady")
        self.assert_calls(f"hold {HERE}", f"require Ready {HERE}")
        self.host.objects[HERE]["status"] = "Ready"
        for dependency in (Dependency(ref), Dependency(ref, held=True), Dependency(ref, ready_when="Ready")):
            dependency.provision(Host())
        self.assert_calls(f"get-metadata {HERE}", f"hold {HERE}", f"require Ready {HERE}")
        ready.deprovision(Host())
        self.assert_calls()

    def test_foreground_deletion_is_waited_for(self):
        wait_for_foreground_deletion({"finalizers": ["g/thing"]})
        wait_for_foreground_deletion({})
        with self.assertRaises(Failure) as raised:
            wait_for_foreground_deletion({"finalizers": ["foregroundDeletion"]})
        self.assertEqual(raised.exception.reason, "ForegroundDeletion")

    def test_detail_of_public_message_is_logged_only(self):
        detail = "10.0.0.7 refused db-admin."
        unavailable = HostError(types.Error_Unavailable(detail))
        for error, level in [
            (terminal("Refused", detail), "WARN"), (unavailable, "WARN"), (wait("Pending", detail), "INFO"),
        ]:
            imports.log.reset_mock()
            failed = with_public_message(error, "The database is not there.")
            private = error.failure() if isinstance(error, HostError) else error
            self.assertEqual((failed.resolution, failed.reason), (private.resolution, private.reason))
            self.assertEqual(failed.message, "The database is not there.")
            [written] = imports.log.write.call_args_list
            self.assertEqual(written.args[:2], (getattr(imports.log.Level, level), detail))
        bug = TypeError("x is None")
        self.assertIs(with_public_message(bug, "The database is not there."), bug)


if __name__ == "__main__":
    unittest.main()
