"""The logic, against a host in memory: `ostler plugin test`, or pytest."""

import unittest

<<without messages>>
from main import Reconciler
from ostler import reference, true_condition
<<with messages>>
from main import Messages, Reconciler
from ostler import ack, reference, true_condition
<<end>>
from ostler_testing import TestHost

EXAMPLE = {"metadata": {"name": "a", "namespace": "b"}, "spec": {"message": "Hello"}}
CONFIG_MAP = reference("v1", "ConfigMap", "a", "b")


class ReconcileTest(unittest.TestCase):
    def test_message_is_written_to_config_map(self):
        host = TestHost()
        # The second time there is nothing more to write.
        for _ in range(2):
            outcome = host.reconcile(Reconciler, EXAMPLE)
            self.assertEqual(outcome.conditions, [true_condition("Ready", "Applied", "message applied: Hello")])
        self.assertEqual(host.object(CONFIG_MAP)["data"], {"message": "Hello"})
        self.assertEqual(len(host.writes), 1)
<<with finalizer>>

    def test_cleanup_deletes_config_map(self):
        host = TestHost()
        host.reconcile(Reconciler, EXAMPLE)
        self.assertIsNotNone(host.object(CONFIG_MAP))
        # The second one finds nothing to delete, which is no error.
        for _ in range(2):
            host.cleanup(Reconciler, EXAMPLE)
            self.assertIsNone(host.object(CONFIG_MAP))
<<end>>
<<with messages>>

    def test_message_creates_its_object_once(self):
        host = TestHost()
        for _ in range(2):
            self.assertEqual(host.handle(Messages, "requests", {"name": "a", "message": "Hello"}), ack())
        self.assertEqual(host.writes, ["create <<kind>> a"])
        self.assertIn("no JSON", host.handle(Messages, "requests", "{").value)
<<end>>
