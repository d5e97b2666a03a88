"""The Python SDK for Ostler plugins: Kubernetes objects are dicts, and an error of the host becomes the fitting failure
when nobody catches it."""

import json
import traceback

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import reconciler
from wit_world.imports import clock, config, events, http, kubernetes, log, memo, metrics, references, status, types

__all__ = [
    "Failure", "Host", "HostError", "Kind", "Outcome", "Response", "after", "at", "no", "parked", "plugin", "poll",
    "reference", "retry", "settled", "throttled", "unknown", "waiting", "yes",
]


def _json(value):
    return json.dumps(value, ensure_ascii=False).encode()


def _condition(state):
    return lambda type, reason, message: types.Condition(type, state, reason, message)


yes = _condition(types.TriState.YES)
no = _condition(types.TriState.NO)
unknown = _condition(types.TriState.UNKNOWN)


class _Result:
    def __init__(self):
        self.conditions = []
        self.status = None

    def with_(self, condition):
        self.conditions.append(condition)
        return self

    def with_status(self, **fields):
        self.status = _json(fields)
        return self


class Outcome(_Result):
    """A reconcile that did what it could."""

    def __init__(self, next):
        super().__init__()
        self.next = next


def settled():
    return Outcome(reconciler.Next_Settled())


def poll(every=None):
    """Look again every so many milliseconds; without, at the configured interval."""
    return Outcome(reconciler.Next_Poll(every))


def after(milliseconds):
    return Outcome(reconciler.Next_After(milliseconds))


def at(time):
    return Outcome(reconciler.Next_At(time))


class Failure(_Result, Exception):
    """To be raised: a reconcile that did not succeed."""

    def __init__(self, resolution, reason, message):
        super().__init__()
        self.resolution, self.reason, self.message = resolution, reason, message


def retry(reason, message):
    return Failure(reconciler.Resolution_Retry(), reason, message)


def waiting(reason, message):
    """Waits for something else; woken when that changes."""
    return Failure(reconciler.Resolution_Yield(), reason, message)


def parked(reason, message):
    return Failure(reconciler.Resolution_Parked(), reason, message)


def throttled(milliseconds, reason, message):
    return Failure(reconciler.Resolution_Throttled(milliseconds), reason, message)


class HostError(Exception):
    """Why the host did not do what it was asked; `error` is that of the contract."""

    def __init__(self, error):
        self.error = error
        super().__init__(_text(error))

    def failure(self):
        message = str(self)
        match self.error:
            case types.Error_Denied(grant):
                return Failure(reconciler.Resolution_Denied(grant), "PermissionDenied", message)
            case types.Error_NotFound():
                return waiting("NotFound", message)
            case types.Error_Conflict():
                return retry("Conflict", message)
            case types.Error_Invalid():
                return parked("Invalid", message)
            case types.Error_Throttled(milliseconds):
                return throttled(milliseconds, "Throttled", message)
            case types.Error_NotReady():
                return waiting("DependencyNotReady", message)
            case types.Error_Budget():
                return retry("BudgetExceeded", message)
            case types.Error_Unsupported():
                return parked("Unsupported", message)
        return retry("Unavailable", message)


def _text(error):
    match error:
        case types.Error_Denied(grant):
            return f"Not permitted: {grant}"
        case types.Error_NotFound(what):
            return f"Not found: {what}"
        case types.Error_Budget(what):
            return f"A limit of this reconcile is used up: {what}"
        case types.Error_Unsupported(what):
            return f"The host does not offer {what}"
        case types.Error_Throttled():
            return "Asked to come back later."
        case types.Error_NotReady(other):
            name = f"{other.ref.gvk.kind} {other.ref.name}"
            if not other.exists:
                return f"{name} does not exist."
            return f"{name} is not Ready: {other.message}" if other.message else f"{name} is not Ready yet."
    return error.value


def _call(function, *parameters):
    try:
        return function(*parameters)
    except Err as e:
        raise HostError(e.value) from None


def _gvk(api_version, kind):
    group, _, version = api_version.rpartition("/")
    return types.Gvk(group, version, kind)


def reference(api_version, kind, name, namespace=None):
    """Names an object."""
    return types.ObjectRef(_gvk(api_version, kind), None, namespace, name)


class Response:
    def __init__(self, response):
        self.status, self.body = response.status, response.body
        self.headers = {header.name: header.value for header in response.headers}

    @property
    def ok(self):
        return 200 <= self.status < 300

    def text(self):
        return self.body.decode(errors="replace")

    def json(self):
        return json.loads(self.body)


class _Upstream:
    def __init__(self, name, namespace):
        self.upstream = http.Upstream(namespace, name)

    def send(self, method, path, headers=None, body=None, json=None, substitutions=(), timeout=0):
        """Any HTTP status is an answer."""
        headers = dict(headers or {})
        if json is not None:
            body = _json(json)
            headers.setdefault("Content-Type", "application/json")
        request = http.Request(
            self.upstream, method, path, [http.Header(*header) for header in headers.items()],
            body.encode() if isinstance(body, str) else body, list(substitutions), timeout,
        )
        return Response(_call(http.send, request))

    def get(self, path, **options):
        return self.send("GET", path, **options)

    def put(self, path, **options):
        return self.send("PUT", path, **options)

    def post(self, path, **options):
        return self.send("POST", path, **options)

    def delete(self, path, **options):
        return self.send("DELETE", path, **options)


class Host:
    """What a reconcile can do."""

    def get(self, ref, fields=(), live=False):
        found = _call(kubernetes.get, ref, kubernetes.GetOptions(live, list(fields)))
        return None if found is None else json.loads(found)

    def list(self, api_version, kind, namespace=None, labels=None, field_selector=None, fields=(), live=False):
        items, token = [], None
        while True:
            options = kubernetes.ListOptions(
                None, namespace, labels, field_selector, [*fields], 0, token, live)
            page = _call(kubernetes.list, _gvk(api_version, kind), options)
            items += [json.loads(item) for item in page.items]
            token = page.continue_token
            if token is None:
                return items

    def require_ready(self, ref):
        return json.loads(_call(kubernetes.require_ready, ref))

    def apply_owned(self, object):
        """Applies the fields given, to an object that goes with the reconciled one."""
        return json.loads(_call(kubernetes.apply, _json(object), kubernetes.WriteOptions(True, True)))

    def apply(self, object, force=False):
        return json.loads(_call(kubernetes.apply, _json(object), kubernetes.WriteOptions(False, force)))

    def create(self, object, owned=False):
        return json.loads(_call(kubernetes.create, _json(object), kubernetes.WriteOptions(owned, False)))

    def delete(self, ref, propagation=None, uid=None):
        _call(kubernetes.delete, ref, kubernetes.DeleteOptions(propagation, uid))

    def hold(self, ref):
        _call(references.hold, ref)

    def upstream(self, name, namespace=None):
        """A named upstream; without a namespace, in that of the reconciled object."""
        return _Upstream(name, namespace)

    def secret_digest(self, secret, key, namespace=None):
        return _call(http.secret_digest, namespace, secret, key)

    def checkpoint(self, **fields):
        _call(status.checkpoint, _json(fields))

    def event(self, reason, note):
        events.emit(events.EventType.NORMAL, reason, note)

    def warn(self, reason, note):
        events.emit(events.EventType.WARNING, reason, note)

    def log(self, level, message, **fields):
        log.write(log.Level[level.upper()], message, [(key, str(value)) for key, value in fields.items()])

    def counter(self, name, delta=1):
        metrics.counter(name, delta)

    def gauge(self, name, value):
        metrics.gauge(name, value)

    def now(self):
        return clock.now()

    def remaining(self):
        return clock.remaining()

    def config(self):
        return json.loads(config.get())

    def memo_get(self, key):
        return memo.get(key)

    def memo_put(self, key, value):
        _call(memo.put, key, value)

    def memo_remove(self, key):
        memo.remove(key)


class Kind:
    """A kind and its reconciler: to be derived from."""

    group = version = kind = ""
    finalizer = label_selector = None
    phase = False

    def reconcile(self, object, host):
        raise NotImplementedError

    def cleanup(self, object, host):
        return settled()


def plugin(name, version, *kinds, max_concurrent=0):
    """The class that a plugin's module has as `Reconciler`."""

    def run(step, request):
        gvk = request.ref.gvk
        try:
            kind = next((k for k in kinds if (k.group, k.kind) == (gvk.group, gvk.kind)), None)
            if kind is None:
                raise parked("UnknownKind", f"{gvk.kind} is not a kind of this plugin.")
            result = getattr(kind, step)(json.loads(request.object), Host())
            return reconciler.Outcome(result.conditions, result.status, result.next)
        except (Failure, HostError) as e:
            failure = e.failure() if isinstance(e, HostError) else e
            raise Err(reconciler.Failure(
                failure.resolution, failure.reason, failure.message, failure.conditions, failure.status)) from None
        except Exception:
            # A bug: it ends the instance, as a panic does; what it says goes to the log first.
            log.write(log.Level.ERROR, traceback.format_exc(), [])
            raise

    class Reconciler(exports.Reconciler):
        def describe(self):
            return reconciler.Descriptor(name, version, [
                reconciler.ReconciledKind(
                    types.Gvk(k.group, k.version, k.kind), k.finalizer, k.label_selector, k.phase)
                for k in kinds
            ], max_concurrent)

        def reconcile(self, request):
            return run("reconcile", request)

        def cleanup(self, request):
            return run("cleanup", request)

    return Reconciler
