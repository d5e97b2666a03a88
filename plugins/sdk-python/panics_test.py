"""The report of an exception that is a bug, which the host writes into the condition."""

import json
import sys
import unittest
from types import SimpleNamespace
from unittest.mock import MagicMock

# There is no host, so the modules of its functions are replaced.
Err = type("Err", (Exception,), {})
imports = MagicMock()
exports = SimpleNamespace(Reconciler=object, Messages=object, reconciler=MagicMock(), messages=MagicMock())
sys.modules["componentize_py_types"] = SimpleNamespace(Err=Err)
sys.modules["wit_world"] = SimpleNamespace(exports=exports, imports=imports)
sys.modules["wit_world.exports"] = exports
sys.modules["wit_world.imports"] = imports

from ostler import Kind, await_change, plugin  # noqa: E402


class Probe(Kind):
    group, version, kind = "a.dev", "v1", "A"

    def reconcile(self, probe, host):
        return {"raises": lambda: probe["missing"], "nothing": lambda: None, "outcome": await_change}[probe["does"]]()


class Panics(unittest.TestCase):
    def setUp(self):
        imports.log.write.reset_mock()

    def reconcile(self, does):
        gvk = SimpleNamespace(group="a.dev", kind="A")
        request = SimpleNamespace(ref=SimpleNamespace(gvk=gvk), object=json.dumps({"does": does}))
        return plugin("p", "1", Probe())().reconcile(request)

    def report(self):
        _, message, fields = imports.log.write.call_args.args
        return message, dict(fields)

    def test_exception_is_reported_with_its_message_and_line(self):
        with self.assertRaises(KeyError):
            self.reconcile("raises")
        message, fields = self.report()
        self.assertEqual(message, "KeyError: 'missing'")
        self.assertRegex(fields["exception.location"], r"panics_test\.py:\d+$")
        self.assertIn("Traceback", fields["exception.stacktrace"])

    def test_reconcile_that_returns_nothing_is_reported_with_the_remedy(self):
        with self.assertRaises(TypeError):
            self.reconcile("nothing")
        message, fields = self.report()
        self.assertIn("reconcile returned None: return await_change()", message)
        self.assertEqual(fields["exception.location"], "")

    def test_outcome_is_returned_without_a_report(self):
        self.reconcile("outcome")
        imports.log.write.assert_not_called()


if __name__ == "__main__":
    unittest.main()
