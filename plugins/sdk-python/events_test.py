"""Requests at once, subscriptions and reads of event streams, with functions in the place of the host's."""

import sys
import unittest
from types import SimpleNamespace
from unittest.mock import MagicMock

# There is no host, so the modules of its functions are replaced.
Err = type("Err", (Exception,), {"__init__": lambda self, value: setattr(self, "value", value)})
imports = MagicMock()
exports = SimpleNamespace(Reconciler=object, Messages=object, reconciler=MagicMock(), messages=MagicMock())
for case in ["Denied", "NotFound", "LimitExceeded", "Unsupported", "Throttled", "NotReady"]:
    setattr(imports.types, f"Error_{case}", type(case, (), {}))
sys.modules["componentize_py_types"] = SimpleNamespace(Err=Err)
sys.modules["wit_world"] = SimpleNamespace(exports=exports, imports=imports)
sys.modules["wit_world.exports"] = exports
sys.modules["wit_world.imports"] = imports

import ostler  # noqa: E402

http = imports.http
upstream = ostler.Host().upstream("u")


class Events(unittest.TestCase):
    def setUp(self):
        http.reset_mock(side_effect=True)

    def test_requests_are_sent_at_once_with_a_response_or_an_error_for_each(self):
        response = SimpleNamespace(status=200, headers=[], body=b"{}")
        http.send_all.return_value = [SimpleNamespace(value=response), Err(SimpleNamespace(value="gone"))]
        first, second = upstream.send_all([
            {"method": "GET", "path": "/a"}, {"method": "PUT", "path": "/b", "json": {"c": 1}}])
        self.assertEqual(len(http.send_all.call_args.args[0]), 2)
        self.assertEqual([call.args[2] for call in http.Request.call_args_list], ["/a", "/b"])
        self.assertEqual(http.Request.call_args.args[4], b'{"c": 1}')
        http.Header.assert_called_once_with("Content-Type", "application/json")
        self.assertTrue(first.ok and first.json() == {})
        self.assertIsInstance(second, ostler.HostError)
        self.assertEqual(str(second), "gone")

    def test_events_are_subscribed_with_their_patterns(self):
        wake, until = ostler.event_match("log"), ostler.event_match("status", "/state", "done")
        self.assertEqual([call.args for call in http.EventMatch.call_args_list], [
            ("log", None), ("status", http.DataMatch.return_value)])
        http.DataMatch.assert_called_once_with("/state", "done")
        upstream.subscribe("/events", wake=[wake], until=[until])
        http.Subscription.assert_called_once_with(upstream.upstream, "/events", [wake], [until])
        http.subscribe.assert_called_once_with(http.Subscription.return_value)

    def test_last_events_are_read(self):
        self.assertIs(upstream.read_events("/events", max_events=5), http.read_events.return_value)
        http.EventQuery.assert_called_once_with(upstream.upstream, "/events", [], [], 5, None, None)
        http.read_events.assert_called_once_with(http.EventQuery.return_value)

    def test_error_of_the_host_is_raised(self):
        http.subscribe.side_effect = Err(SimpleNamespace(value="no upstream"))
        with self.assertRaisesRegex(ostler.HostError, "no upstream"):
            upstream.subscribe("/events")


if __name__ == "__main__":
    unittest.main()
