"""Prints the kinds that the types of a plugin define, as JSON. Not part of the component: `ostler plugin crds` runs it with
the folders in which modules are searched, the plugin's first."""

import ast
import contextlib
import dataclasses
import enum
import inspect
import json
import sys
import textwrap
import traceback
import types
import typing

sys.dont_write_bytecode = True
sys.path[:0] = sys.argv[1:]
from ostler_types import Schema, encode, field_types, has_default, json_name, optional_of  # noqa: E402

PRIMITIVES = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number", "format": "double"},
    bool: {"type": "boolean"},
}
ANY = {"x-kubernetes-preserve-unknown-fields": True}


def describe_type(hint, path, outer=()):
    """Returns the structural schema of a type."""
    arguments, origin = typing.get_args(hint), typing.get_origin(hint)
    if origin is typing.Annotated:
        found = describe_type(arguments[0], path, outer)
        for annotation in arguments[1:]:
            if isinstance(annotation, Schema):
                found = {**found, **annotation.keywords}
        return found
    if (inner := optional_of(hint)) is not None:
        return describe_type(inner, path, outer)
    if hint in PRIMITIVES:
        return dict(PRIMITIVES[hint])
    if hint is typing.Any:
        return dict(ANY)
    if origin is typing.Literal:
        return _enumeration(arguments, path)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enumeration([member.value for member in hint], path)
    if origin is list:
        return {"type": "array", "items": describe_type(arguments[0], f"{path}[]", outer)}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": describe_type(arguments[1], f"{path}{{}}", outer)}
    if hint is dict:
        return {"type": "object", **ANY}
    if dataclasses.is_dataclass(hint):
        if hint in outer:
            raise TypeError(f"{path}: {hint.__name__} contains itself, which no schema of a CRD can express: use dict")
        return _describe_fields(hint, path, (*outer, hint))
    raise TypeError(
        f"{path}: no schema for {hint!r}: use str, int, float, bool, list[…], dict[str, …], Literal[…], an Enum, "
        "a dataclass or typing.Any")


def _enumeration(values, path):
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"{path}: an enum of a schema has texts only")
    return {"type": "string", "enum": [*values]}


def _describe_fields(cls, path, outer):
    hints, texts = field_types(cls), _field_texts(cls)
    properties, required = {}, []
    for field in dataclasses.fields(cls):
        name = json_name(field)
        found = describe_type(hints[field.name], f"{path}.{name}", outer)
        if text := texts.get(field.name):
            found["description"] = text
        default = field.default if field.default is not dataclasses.MISSING else None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is not None:
            found["default"] = encode(default)
        if not has_default(field) and optional_of(hints[field.name]) is None:
            required.append(name)
        properties[name] = found
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if text := _type_text(cls):
        schema["description"] = text
    return schema


def _type_text(cls):
    text = inspect.getdoc(cls) or ""
    # A dataclass without a docstring has its signature in place of one.
    return "" if text.startswith(f"{cls.__name__}(") else _paragraphs(text)


def _field_texts(cls):
    """Returns the texts of fields: each is a string literal after its field, which Python itself does not keep."""
    texts = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for field, after in zip(body, body[1:]):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
            if isinstance(field, ast.AnnAssign) and is_text:
                texts[field.target.id] = _paragraphs(inspect.cleandoc(after.value.value))
    return texts


def _paragraphs(text):
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def describe_kind(kind):
    """Returns a kind with the schemas of its types."""
    status = None if kind.status is None else describe_type(kind.status, f"{kind.kind}.status")
    return {
        "group": kind.group, "version": kind.version, "kind": kind.kind, "plural": kind.plural, "scope": kind.scope,
        "shortNames": [*kind.short_names], "categories": [*kind.categories], "columns": [*kind.columns],
        "spec": describe_type(kind.spec, f"{kind.kind}.spec"), "status": status,
    }


def main():
    # What the plugin prints is no part of the result.
    with contextlib.redirect_stdout(sys.stderr):
        import main as plugin
        kinds = [describe_kind(kind) for kind in getattr(plugin.Reconciler, "kinds", ()) if kind.spec is not None]
    json.dump(kinds, sys.stdout)


if __name__ == "__main__":
    try:
        main()
    except TypeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        if frames[-1].filename != __file__:
            raise
        sys.exit(str(error))
