"""Service providers against a fake of the host functions, with the cases that the SDKs of all languages have in common."""

import copy
import json
import re
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


@dataclass
class Err(Exception):
    value: object


def _fake_modules():
    """There is no host, so the modules of its functions are replaced."""
    imports = MagicMock()
    errors = _cases("Error", [
        "Denied", "NotFound", "Conflict", "Invalid", "Throttled", "Unavailable", "NotReady", "LimitExceeded", "Unsupported"])
    imports.types = SimpleNamespace(
        **vars(errors), ConditionStatus=Enum("ConditionStatus", ["TRUE", "FALSE", "UNKNOWN"], start=0),
        Condition=make_dataclass("Condition", ["type", "status", "reason", "message"]),
        Gvk=make_dataclass("Gvk", ["group", "version", "kind"]),
        ObjectRef=make_dataclass("ObjectRef", ["gvk", "cluster", "namespace", "name"]),
        SecretKeyRef=make_dataclass("SecretKeyRef", ["cluster", "namespace", "name", "key"]))
    imports.kubernetes = SimpleNamespace(
        Propagation=Enum("Propagation", ["BACKGROUND", "FOREGROUND", "ORPHAN"], start=0),
        Projection_Full=make_dataclass("Projection_Full", []), Projection_Metadata=make_dataclass("Projection_Metadata", []),
        GetOptions=make_dataclass("GetOptions", ["live", "projection"]),
        ApplyOptions=make_dataclass("ApplyOptions", ["cluster", "owned", "force", "substitutions"]),
        Preconditions=make_dataclass("Preconditions", ["uid", "resource_version"]),
        DeleteOptions=make_dataclass("DeleteOptions", ["propagation", "preconditions"]))
    resolutions = _cases(
        "Resolution", ["Retry", "Throttled", "Wait", "Denied", "Terminal"], bare=["Retry", "Wait", "Terminal"])
    reconciler = SimpleNamespace(
        **vars(resolutions), **vars(_cases("Next", ["AwaitChange", "Poll"], bare=["AwaitChange"])))
    exports = SimpleNamespace(Reconciler=object, Messages=object, reconciler=reconciler, messages=MagicMock())
    return imports, {
        "componentize_py_types": SimpleNamespace(Err=Err),
        "wit_world": SimpleNamespace(exports=exports, imports=imports),
        "wit_world.exports": exports, "wit_world.imports": imports,
    }


imports, modules = _fake_modules()
sys.modules.update(modules)
types, reconciler = imports.types, modules["wit_world.exports"].reconciler

from ostler import Failure, Host, await_change, reference, retry  # noqa: E402
from ostler_provider import ServiceProvider, build_stable_name, request_of_same_name  # noqa: E402
from ostler_provision import Resource  # noqa: E402

TABLE = Path(__file__).parent.parent / "sdk/tests/provider/table.json"
DELETION_TIME = "2026-01-01T00:00:00Z"


class Copies(ServiceProvider):
    """A provider that copies a text to the workload cluster."""

    group, version, kind, finalizer = "g", "v1", "Copy", "g/copy"
    provider_name, config_api_version, config_kind = "copies", "g/v1", "CopyConfig"
    workload_permissions = [{"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]}]

    def __init__(self, world, with_mcp):
        self.world = world
        self.mcp_permissions = self.workload_permissions if with_mcp else None

    def build_copy(self, object, clusters):
        metadata = {"name": object["metadata"]["name"], "namespace": "copies"}
        config_map = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": object["spec"]["text"]}}
        return Resource(object["metadata"], config_map, cluster=clusters.workload.name)

    def create_or_update(self, object, config, clusters, host):
        self.world.calls.append(f"create config={json.dumps(config is not None)}")
        self.build_copy(object, clusters).provision(host)
        return await_change().with_status(text=object["spec"]["text"])

    def delete(self, object, config, clusters, host):
        self.world.calls.append(f"delete config={json.dumps(config is not None)}")
        if self.world.deletion == "failing":
            raise retry("StillUsed", "The copy is used.")
        if self.world.deletion == "complete":
            self.build_copy(object, clusters).deprovision(host)


class Stopped(Exception):
    """The host stops, and the plugin gets no answer."""


def on_cluster(cluster):
    """Name of the cluster of a reference. Nothing that a provider reads or writes is on its home cluster, `home`."""
    return "" if cluster == "in-cluster" else f" on {cluster or 'home'}"


def key_of(ref):
    return f"{ref.gvk.kind} {ref.namespace or ''} {ref.name}{on_cluster(ref.cluster)}"


def entry_of(ref):
    """Entry of an inventory."""
    group = f".{ref.gvk.group}" if ref.gvk.group else ""
    return f"{ref.gvk.kind}.{ref.gvk.version}{group} {ref.cluster} {ref.namespace}/{ref.name}"


def merge_patch(into, patch):
    """Applies a JSON merge patch (RFC 7386)."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge_patch(into.setdefault(key, {}), value)
        else:
            into[key] = value


class World:
    """The clusters, the object of the provider, and the provider."""

    def __init__(self, with_mcp=False):
        self.owner = {
            "apiVersion": "g/v1", "kind": "Copy", "metadata": {"name": "a", "namespace": "n", "uid": "u-1"},
            "spec": {"text": "hello"},
        }
        self.objects, self.plugin_config, self.owned, self.writes, self.calls = {}, {}, {}, [], []
        self.deletion, self.created, self.effects_left, self.failing_config = "complete", 0, None, None
        self.provider = Copies(self, with_mcp)
        self.set_config("copies", {})
        for name in ("get", "apply", "delete"):
            setattr(imports.kubernetes, name, getattr(self, name))
        imports.config.get = lambda: json.dumps(self.plugin_config).encode()
        imports.status.checkpoint = self.checkpoint

    def count_effect(self):
        if self.effects_left is not None:
            self.effects_left -= 1
            if self.effects_left <= 0:
                raise Stopped

    def set_config(self, name, spec):
        key = f"CopyConfig  {name}"
        if spec is None:
            self.objects.pop(key)
        else:
            self.objects[key] = {"apiVersion": "g/v1", "kind": "CopyConfig", "metadata": {"name": name}, "spec": spec}

    def checkpoint(self, fields):
        merge_patch(self.owner, {"status": json.loads(fields)})
        self.count_effect()

    def inventory(self):
        return self.owned.setdefault(self.owner["metadata"]["uid"], set())

    def get(self, ref, options):
        if self.failing_config and ref.gvk.kind == "CopyConfig":
            raise Err(self.failing_config)
        found = self.objects.get(key_of(ref))
        if found is not None and isinstance(options.projection, imports.kubernetes.Projection_Metadata):
            found = {key: found[key] for key in ("apiVersion", "kind", "metadata")}
        return None if found is None else json.dumps(found).encode()

    def apply(self, text, options):
        applied = json.loads(text)
        metadata = applied["metadata"]
        ref = reference(applied["apiVersion"], applied["kind"], metadata["name"], metadata["namespace"], options.cluster)
        live = self.objects.get(key_of(ref))
        if options.owned:
            merge_patch(applied, {"metadata": {"labels": {"ostler.dev/owner-uid": self.owner["metadata"]["uid"]}}})
            self.inventory().add(entry_of(ref))
        object = copy.deepcopy(live or {})
        merge_patch(object, applied)
        is_changed = object != live
        if "uid" not in object["metadata"]:
            self.created += 1
            object["metadata"]["uid"] = f"uid-{self.created}"
        self.objects[key_of(ref)] = object
        if is_changed:
            owned = " owned" if options.owned else ""
            self.writes.append(f"apply {ref.gvk.kind} {ref.name}{owned}{on_cluster(ref.cluster)}")
            self.count_effect()
        return json.dumps(object).encode()

    def delete(self, ref, options):
        live = self.objects.get(key_of(ref))
        required = options.preconditions.uid
        assert live is None or required in (None, live["metadata"]["uid"]), f"another uid: {key_of(ref)}"
        self.inventory().discard(entry_of(ref))
        if live is None:
            return
        del self.objects[key_of(ref)]
        if "deletionTimestamp" not in live["metadata"]:
            self.writes.append(f"delete {ref.gvk.kind} {ref.name}{on_cluster(ref.cluster)}")
            self.count_effect()

    def call(self, step, stop_after=None):
        """Calls the provider as the host does, and returns the result as the table has it."""
        object = copy.deepcopy(self.owner)
        if step == "delete":
            object["metadata"]["deletionTimestamp"] = DELETION_TIME
        if self.inventory():
            object["metadata"]["annotations"] = {"ostler.dev/owned-objects": ", ".join(sorted(self.inventory()))}
        run = self.provider.cleanup if step == "delete" else self.provider.reconcile
        self.effects_left = stop_after
        try:
            ended = run(object, Host())
        except Stopped:
            return {"stopped": True}
        except Failure as e:
            ended = e
        finally:
            self.effects_left = None
        if ended.status is not None:
            self.owner["status"] = json.loads(ended.status)
        if isinstance(ended, Failure):
            resolution = type(ended.resolution).__name__.removeprefix("Resolution_").lower()
            return {"resolution": resolution, "reason": ended.reason, "message": ended.message}
        if isinstance(ended.next, reconciler.Next_Poll):
            return {"next": "poll", "milliseconds": ended.next.value}
        assert ended.next == reconciler.Next_AwaitChange(), ended.next
        return {"next": "await-change"}

    def finish(self, step):
        """Calls the provider, and grants each request, until it succeeds."""
        for _ in range(10):
            if "next" in self.call(step):
                return self.take()
            self.grant_all()
        raise AssertionError(f"{step} does not end: {self.call(step)}")

    def grant_all(self):
        """Grants each request, as openmcp does."""
        for object in self.objects.values():
            if object["kind"] == "ClusterRequest":
                object["status"] = {"phase": "Granted"}
            if object["kind"] == "AccessRequest":
                object["status"] = {"phase": "Granted", "secretRef": {"name": "credentials"}}

    def show(self):
        """The objects as the table has them."""
        shown = {}
        for key, object in self.objects.items():
            if object["kind"] != "CopyConfig":
                fields = {**object["metadata"], **object}
                shown[key] = {
                    field: fields[field] for field in ("labels", "annotations", "spec", "data") if field in fields}
        return shown

    def take(self):
        taken = {"writes": self.writes[:], "calls": self.calls[:], "status": self.owner.get("status", {})}
        self.writes.clear()
        self.calls.clear()
        return taken

    def run(self, test, step):
        match step:
            case {"call": call, **expected}:
                result = self.call(call, expected.pop("stopAfter", None))
                test.assertEqual({"result": result, **self.take()}, expected)
            case {"install": True}:
                self.finish("reconcile")
            case {"grant": True}:
                self.grant_all()
            case {"patch": key, "with": patch}:
                merge_patch(self.objects[key], patch)
            case {"remove": key}:
                del self.objects[key]
            case {"config": name, "spec": spec}:
                self.set_config(name, spec)
            case {"pluginConfig": config}:
                self.plugin_config = config
            case {"deletion": deletion}:
                self.deletion = deletion
            case {"owner": patch}:
                merge_patch(self.owner, patch)
            case _:
                test.assertEqual(self.show(), step["objects"])


class Providers(unittest.TestCase):
    maxDiff = None

    def test_provider_acts_as_in_the_table_of_all_languages(self):
        cases = json.loads(TABLE.read_text())["cases"]
        self.assertTrue(cases)
        for case in cases:
            world = World(case.get("mcp", False))
            for index, step in enumerate(case["steps"]):
                with self.subTest(case["name"], step=index):
                    world.run(self, step)

    def test_provider_interrupted_anywhere_leaves_nothing_behind(self):
        for installed in range(1, 9):
            for removed in range(1, 9):
                world = World(with_mcp=True)
                for _ in range(installed):
                    world.call("reconcile", 1)
                    world.grant_all()
                for stop_after in (removed, 1, 2):
                    world.call("delete", stop_after)
                    revoked = [w for w in world.writes if re.match("delete (Cluster|AccessRequest|ClusterRequest) ", w)]
                    left = [key for key in world.objects if key.startswith("ConfigMap ")]
                    self.assertFalse(revoked and left, "revoked too early")
                world.finish("delete")
                self.assertEqual(world.show(), {})

    def test_cluster_that_is_not_requested_is_a_terminal_failure(self):
        world = World()
        world.provider.create_or_update = lambda object, config, clusters, host: clusters.mcp.name
        world.call("reconcile")
        world.grant_all()
        world.call("reconcile")
        world.grant_all()
        self.assertEqual(world.call("reconcile")["reason"], "ClusterNotRequested")

    def test_returned_failure_is_a_bug_and_no_success(self):
        world = World()
        world.finish("reconcile")
        world.provider.create_or_update = world.provider.delete = lambda *_: retry("Because", "Not yet.")
        with self.assertRaisesRegex(TypeError, "create_or_update returned a Failure: raise it"):
            world.call("reconcile")
        with self.assertRaisesRegex(TypeError, "delete returned a Failure: raise it"):
            world.call("delete")

    def test_outage_blocks_the_deletion_and_a_denied_configuration_does_not(self):
        for error, is_blocked in [
            (types.Error_Unavailable("x"), True), (types.Error_Throttled(5), True),
            (types.Error_Denied("x"), False), (types.Error_Invalid("x"), False),
        ]:
            with self.subTest(error):
                world = World()
                world.finish("reconcile")
                world.failing_config = error
                result = world.call("delete")
                self.assertEqual(world.calls, [] if is_blocked else ["delete config=false"])
                self.assertEqual("next" not in result, is_blocked)

    def test_names_are_stable(self):
        self.assertEqual(build_stable_name("foo", {"name": "a", "namespace": "n"}), "foo-a683c5c5349f6f7fb903ba8a9e7e55d0")
        self.assertEqual(request_of_same_name({"name": "a", "namespace": "n", "uid": "u"}), ("a", "n"))


if __name__ == "__main__":
    unittest.main()
