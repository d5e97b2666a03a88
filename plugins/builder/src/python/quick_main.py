"""Entry module of a component for `ostler plugin dev`. It imports the plugin's modules at each call, from a memory into which
the builder writes their sources: the interpreter with the SDK is compiled once and not at each save."""

import importlib
import importlib.abc
import importlib.util
import json
import os
import sys

import ostler
import ostler_provider
import ostler_provision
from ostler_quick import CAPACITY, HIDDEN_MARK, IMPORTS

# There are no files at run time: what the plugin imports must be in the snapshot.
for _name in IMPORTS:
    try:
        importlib.import_module(_name)
    except Exception:
        # Of a name in `from module import name`, or the plugin's own import of it shows the error.
        pass

# The mark, the length of the sources in eight bytes, and the sources. They are never zero, because a snapshot leaves zeros out, and
# the mark is decoded byte by byte, so that memory has it once.
_memory = bytearray(b"Z") * CAPACITY
for _at, _byte in enumerate(HIDDEN_MARK):
    _memory[_at] = _byte ^ 0x55


class _Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The plugin's modules, by their full names: the path of the file and its text."""

    def __init__(self, sources):
        self.sources = sources
        self.folder = os.path.dirname(ostler.__file__)

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        file = f"{self.folder}/{self.sources[name][0]}"
        package = file.endswith("/__init__.py")
        spec = importlib.util.spec_from_loader(name, self, origin=file, is_package=package)
        spec.has_location = True
        return spec

    def exec_module(self, module):
        text = self.sources[module.__name__][1]
        exec(compile(text, module.__spec__.origin, "exec", dont_inherit=True), module.__dict__)


def _import_main():
    if "main" not in sys.modules:
        start = len(HIDDEN_MARK) + 8
        length = int.from_bytes(_memory[start - 8:start], "little")
        sys.meta_path.insert(0, _Modules(json.loads(_memory[start:start + length])))
    try:
        return importlib.import_module("main")
    except Exception as error:
        ostler._log_bug(error)
        raise


class _Export:
    """Passes calls on to the class of the same name in the plugin's main module."""

    def __getattr__(self, method):
        return getattr(getattr(_import_main(), type(self).__name__)(), method)


class Reconciler(_Export):
    pass


class Messages(_Export):
    pass


class Lifecycle(_Export):
    pass
