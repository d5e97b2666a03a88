"""Typed specs: reading objects, writing statuses, and the schemas of a CRD."""

import dataclasses
import enum
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Annotated, Any, Literal

from ostler_types import Object, decode, encode, schema


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclasses.dataclass
class Port:
    number: Annotated[int, schema(minimum=1)]
    name: str | None = None


@dataclasses.dataclass
class Spec:
    host_name: str
    ports: list[Port]
    note: str | None
    size: Size = Size.SMALL
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    mode: Literal["on", "off"] = "on"
    weight: float = 1.0
    more: Any = None
    url: str = dataclasses.field(default="", metadata={"json": "baseURL"})


VALUE = {"hostName": "a", "ports": [{"number": 1}], "size": "large", "labels": {"x": "y"}, "weight": 2, "baseURL": "u",
         "unknown": 1}


class Types(unittest.TestCase):
    def test_object_is_a_dict_with_a_typed_spec(self):
        thing = Object({"metadata": {"name": "n", "namespace": "s"}, "spec": VALUE}, Spec)
        self.assertEqual((thing.name, thing.namespace, thing["spec"]["size"]), ("n", "s", "large"))
        self.assertEqual(thing.spec, Spec("a", [Port(1)], None, Size.LARGE, {"x": "y"}, weight=2.0, url="u"))
        self.assertEqual(Object({"spec": VALUE}).spec, VALUE)

    def test_value_of_another_type_is_refused_with_its_path(self):
        for change, text in [
            ({"hostName": None}, "spec.hostName is missing"),
            ({"hostName": 1}, "spec.hostName is 1, not of type str"),
            ({"ports": [{"number": True}]}, "spec.ports[0].number is True, not of type int"),
            ({"ports": {}}, "spec.ports is {}, not a list"),
            ({"labels": {"x": 1}}, "spec.labels.x is 1, not of type str"),
            ({"size": "huge"}, "spec.size is 'huge', not one of small, large"),
            ({"mode": "maybe"}, "spec.mode is 'maybe', not one of on, off"),
        ]:
            with self.assertRaises(ValueError) as caught:
                decode(Spec, {**VALUE, **change}, "spec")
            self.assertEqual(str(caught.exception), text)

    def test_encoded_value_is_read_as_the_same_value(self):
        spec = decode(Spec, VALUE, "spec")
        encoded = encode(spec)
        self.assertEqual(encoded["ports"], [{"number": 1}])
        self.assertNotIn("note", encoded)
        self.assertEqual(decode(Spec, json.loads(json.dumps(encoded)), "spec"), spec)


MODULE = '''
from __future__ import annotations
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from ostler import Kind, column, plugin, schema

print("this is no part of the result")

class Size(enum.Enum):
    SMALL = "small"

@dataclass
class Port:
    """A port."""

    number: Annotated[int, schema(minimum=1)]

@dataclass
class ThingSpec:
    """A thing,
    of two lines."""

    host_name: Annotated[str, schema(min_length=1)]
    """Name of
    the host."""
    ports: list[Port] = field(default_factory=list)
    """Its ports."""
    size: Size = Size.SMALL
    note: str | None = None
    labels: dict[str, str] | None = None
    mode: Literal["on", "off"] | None = None
    more: Any = None
{more}

class Thing(Kind):
    group, version, kind, spec = "a.dev", "v1", "Thing", ThingSpec
    columns = [column("Host", ".spec.hostName")]

class Untyped(Kind):
    group, version, kind = "a.dev", "v1", "Untyped"

Reconciler = plugin("p", "1", Thing(), Untyped())
'''


class Crds(unittest.TestCase):
    def generate(self, more=""):
        here = Path(__file__).parent
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "main.py").write_text(MODULE.replace("{more}", more))
            command = [sys.executable, "-B", str(here / "crds.py"), folder, str(here)]
            return subprocess.run(command, capture_output=True, text=True)

    def test_schema_has_the_types_texts_and_constraints_of_the_fields(self):
        done = self.generate()
        self.assertEqual(done.returncode, 0, done.stderr)
        thing, = json.loads(done.stdout)
        self.assertEqual((thing["kind"], thing["plural"], thing["status"]), ("Thing", None, None))
        self.assertEqual(thing["columns"], [{"name": "Host", "jsonPath": ".spec.hostName", "type": "string"}])
        spec = thing["spec"]
        self.assertEqual((spec["description"], spec["required"]), ("A thing, of two lines.", ["hostName"]))
        self.assertEqual(spec["properties"], {
            "hostName": {"type": "string", "minLength": 1, "description": "Name of the host."},
            "ports": {"type": "array", "default": [], "description": "Its ports.", "items": {
                "type": "object", "description": "A port.", "required": ["number"],
                "properties": {"number": {"type": "integer", "format": "int64", "minimum": 1}}}},
            "size": {"type": "string", "enum": ["small"], "default": "small"},
            "note": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "mode": {"type": "string", "enum": ["on", "off"]},
            "more": {"x-kubernetes-preserve-unknown-fields": True},
        })

    def test_type_without_a_schema_is_refused_with_its_field(self):
        for more, words in [
            ("    when: complex = 0", ["Thing.spec.when: no schema for <class 'complex'>", "use str, int"]),
            ("    inner: ThingSpec | None = None", ["Thing.spec.inner: ThingSpec contains itself"]),
            ("    one: Literal[1, 2] | None = None", ["Thing.spec.one: an enum of a schema has texts only"]),
        ]:
            done = self.generate(more)
            self.assertEqual(done.returncode, 1, done.stdout)
            for word in words:
                self.assertIn(word, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
