"""Typed specs: dataclasses whose fields are read from Kubernetes objects, and described by the schemas of a CRD. A field
`config_map` is `configMap` in an object; `field(metadata={"json": "…"})` names it otherwise."""

import dataclasses
import enum
import functools
import types
import typing


class Schema:
    """Keywords of a field's schema; see `schema`."""

    def __init__(self, keywords):
        self.keywords = keywords


def schema(**keywords):
    """Constrains a field by keywords of OpenAPI: `message: Annotated[str, schema(min_length=1)]`."""
    return Schema({camel_case(name): value for name, value in keywords.items()})


def column(name, json_path, type="string", description=None, priority=0):
    """Returns a printer column of a kind."""
    optional = {"description": description, "priority": priority}
    return {"name": name, "jsonPath": json_path, "type": type, **{k: v for k, v in optional.items() if v}}


def camel_case(name):
    first, *rest = name.strip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def json_name(field):
    """Returns the name of a dataclass's field in an object."""
    return field.metadata.get("json") or camel_case(field.name)


@functools.cache
def field_types(cls):
    """Returns the types of a dataclass's fields with their annotations."""
    return typing.get_type_hints(cls, include_extras=True)


def has_default(field):
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def optional_of(hint):
    """Returns T for `Optional[T]`, and None for other types."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return None
    rest = [other for other in typing.get_args(hint) if other is not types.NoneType]
    return rest[0] if len(rest) == 1 else None


def decode(hint, value, path):
    """Converts a JSON value to a type. Raises ValueError with the path of the field that does not fit."""
    arguments, origin = typing.get_args(hint), typing.get_origin(hint)
    if origin is typing.Annotated:
        return decode(arguments[0], value, path)
    if (inner := optional_of(hint)) is not None:
        return None if value is None else decode(inner, value, path)
    if origin is typing.Literal:
        return _checked(value, value in arguments, path, "one of " + ", ".join(map(str, arguments)))
    if origin is list or hint is list:
        _checked(value, isinstance(value, list), path, "a list")
        return [decode(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value)] if arguments else value
    if origin is dict or hint is dict:
        _checked(value, isinstance(value, dict), path, "a mapping")
        return {k: decode(arguments[1], v, f"{path}.{k}") for k, v in value.items()} if arguments else value
    if dataclasses.is_dataclass(hint):
        _checked(value, isinstance(value, dict), path, "a mapping")
        return _decode_fields(hint, value, path)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        names = [member.value for member in hint]
        return hint(_checked(value, value in names, path, "one of " + ", ".join(map(str, names))))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (str, int, float, bool):
        fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
        return _checked(value, fits, path, f"of type {hint.__name__}")
    return value


def _decode_fields(cls, value, path):
    hints, arguments = field_types(cls), {}
    for field in dataclasses.fields(cls):
        name = json_name(field)
        if value.get(name) is not None:
            arguments[field.name] = decode(hints[field.name], value[name], f"{path}.{name}")
        elif not has_default(field):
            if optional_of(hints[field.name]) is None:
                raise ValueError(f"{path}.{name} is missing")
            arguments[field.name] = None
    return cls(**arguments)


def _checked(value, fits, path, expected):
    if not fits:
        raise ValueError(f"{path} is {value!r}, not {expected}")
    return value


def encode(value):
    """Converts dataclasses and enums to JSON values. Fields that are None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {json_name(field): getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: encode(inner) for name, inner in fields.items() if inner is not None}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: encode(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(inner) for inner in value]
    return value


class Object(dict):
    """A Kubernetes object: a dict, with `name`, `namespace`, `metadata`, `spec` and `status` as attributes. `spec` is an
    instance of the dataclass that its kind names, and otherwise a dict."""

    def __init__(self, value, spec=None):
        super().__init__(value)
        self.metadata, self.status = value.get("metadata", {}), value.get("status", {})
        self.name, self.namespace = self.metadata.get("name"), self.metadata.get("namespace")
        self.spec = value.get("spec", {})
        if spec is not None:
            self.spec = decode(spec, self.spec, "spec")
