"""The Python SDK for Ostler plugins. Kubernetes objects are dicts, and an error of the host becomes the fitting failure
when the plugin does not catch it."""

import json
import traceback

try:
    from componentize_py_types import Err
except ModuleNotFoundError:  # Outside of a component, in a native test.
    from ostler_testing import Err
from ostler_types import Object, column, encode, schema
from wit_world import exports
from wit_world.exports import reconciler
from wit_world.imports import (
    cache, clock, config, events, http, kubernetes, log, messaging, metrics, permits, references, status, types,
)

try:
    from wit_world.exports import messages
except ImportError:  # The world of a plugin without a message handler.
    messages = None

__all__ = [
    "Delivery", "Failure", "Host", "HostError", "Kind", "Object", "Outcome", "Response", "ack", "after", "at", "await_change",
    "column", "event_match", "false_condition", "lifecycle_hooks", "message_handler", "plugin", "poll", "reference", "reject", "retry",
    "retry_after", "schema", "secret", "substitution", "terminal", "throttled", "true_condition", "unknown_condition", "wait",
]


def _json(value):
    return json.dumps(value, ensure_ascii=False).encode()


def _condition(state):
    return lambda type, reason, message: types.Condition(type, state, reason, message)


true_condition = _condition(types.ConditionStatus.TRUE)
false_condition = _condition(types.ConditionStatus.FALSE)
unknown_condition = _condition(types.ConditionStatus.UNKNOWN)


class _Result:
    def __init__(self):
        self.conditions = []
        self.status = None

    def with_(self, condition):
        self.conditions.append(condition)
        return self

    def with_status(self, status=None, /, **fields):
        """Sets the status fields: those of a dataclass, or as they are named in the object."""
        self.status = _json({**(encode(status) if status is not None else {}), **encode(fields)})
        return self


class Outcome(_Result):
    """The result of a reconcile that succeeded."""

    def __init__(self, next):
        super().__init__()
        self.next = next


def await_change():
    """Succeeds; the object is reconciled again when it, or an object that was read, changes."""
    return Outcome(reconciler.Next_AwaitChange())


def poll(interval=None):
    """Succeeds; the object is reconciled again at this interval in milliseconds, or at the configured interval."""
    return Outcome(reconciler.Next_Poll(interval))


def after(milliseconds):
    return Outcome(reconciler.Next_After(milliseconds))


def at(time):
    return Outcome(reconciler.Next_At(time))


class Failure(_Result, Exception):
    """The result of a reconcile that failed, to be raised."""

    def __init__(self, resolution, reason, message):
        super().__init__()
        self.resolution, self.reason, self.message = resolution, reason, message


def retry(reason, message):
    return Failure(reconciler.Resolution_Retry(), reason, message)


def wait(reason, message):
    """Waits for something else, which is not an error; the object is reconciled again when that changes."""
    return Failure(reconciler.Resolution_Wait(), reason, message)


def terminal(reason, message):
    """Fails permanently, until the spec, an object that was read, the configuration or the plugin changes."""
    return Failure(reconciler.Resolution_Terminal(), reason, message)


def throttled(milliseconds, reason, message):
    return Failure(reconciler.Resolution_Throttled(milliseconds), reason, message)


class HostError(Exception):
    """The error of a host function; `error` is that of the contract."""

    def __init__(self, error):
        self.error = error
        super().__init__(_text(error))

    @property
    def is_conflict(self):
        """Another client has changed the object, or it exists."""
        return isinstance(self.error, types.Error_Conflict)

    def failure(self):
        message = str(self)
        match self.error:
            case types.Error_Denied(grant):
                return Failure(reconciler.Resolution_Denied(grant), "PermissionDenied", message)
            case types.Error_NotFound():
                return wait("NotFound", message)
            case types.Error_Conflict():
                return retry("Conflict", message)
            case types.Error_Invalid():
                return terminal("Invalid", message)
            case types.Error_Throttled(milliseconds):
                return throttled(milliseconds, "Throttled", message)
            case types.Error_NotReady():
                return wait("DependencyNotReady", message)
            case types.Error_LimitExceeded():
                return retry("LimitExceeded", message)
            case types.Error_Unsupported():
                return terminal("Unsupported", message)
        return retry("Unavailable", message)


def with_public_message(error, message):
    """Returns the failure of an error with a message for all who may read the object, to be raised. The text of the error,
    which may describe the inside of another system (CWE-209), is written to the log only. An error that is a bug stays as it
    is."""
    failed = error.failure() if isinstance(error, HostError) else error
    if not isinstance(failed, Failure):
        return error
    level = log.Level.INFO if isinstance(failed.resolution, reconciler.Resolution_Wait) else log.Level.WARN
    log.write(level, failed.message, [("public_message", message)])
    public = Failure(failed.resolution, failed.reason, message)
    public.conditions, public.status = list(failed.conditions), failed.status
    return public


def _text(error):
    match error:
        case types.Error_Denied(grant):
            return f"Not permitted: {grant}"
        case types.Error_NotFound(what):
            return f"Not found: {what}"
        case types.Error_LimitExceeded(what):
            return f"A limit of this reconcile is used up: {what}"
        case types.Error_Unsupported(what):
            return f"The host does not offer {what}"
        case types.Error_Throttled():
            return "The other side asked for fewer requests."
        case types.Error_NotReady(other):
            name = f"{other.ref.gvk.kind} {other.ref.name}"
            if not other.exists:
                return f"{name} does not exist."
            required = other.condition
            if other.status != types.ConditionStatus.TRUE:
                required += f"={other.status.name.capitalize()}"
            return f"{name} is not {required}: {other.message}" if other.message else f"{name} is not {required} yet."
    return error.value


def _call(function, *parameters):
    try:
        return function(*parameters)
    except Err as e:
        raise HostError(e.value) from None


def _gvk(api_version, kind):
    group, _, version = api_version.rpartition("/")
    return types.Gvk(group, version, kind)


def reference(api_version, kind, name, namespace=None, cluster=None):
    """Returns a reference to an object."""
    return types.ObjectRef(_gvk(api_version, kind), cluster, namespace, name)


def secret(name, key, namespace=None):
    """Returns a reference to a key of a Secret; without a namespace, in that of the reconciled object."""
    return types.SecretKeyRef(None, namespace, name, key)


def substitution(placeholder, secret, encoding="plain"):
    """Replaces a placeholder of at least 16 bytes by the value of a secret."""
    encoding = types.Encoding[encoding.upper().replace("-", "_")]
    return types.Substitution(placeholder, types.SecretSource_Key(secret), encoding)


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


def event_match(name=None, pointer=None, value=None):
    """Returns a pattern of events in a stream: of this name, and with this value at a JSON pointer into their data. Both
    are optional."""
    return http.EventMatch(name, None if pointer is None else http.DataMatch(pointer, value))


class _Upstream:
    def __init__(self, name, namespace):
        self.upstream = types.UpstreamRef(None, namespace, name)

    def _request(self, method, path, headers=None, body=None, json=None, substitutions=(), timeout=None):
        headers = dict(headers or {})
        if json is not None:
            body = _json(json)
            headers.setdefault("Content-Type", "application/json")
        return http.Request(
            self.upstream, http.Method[method.upper()], path, [http.Header(*header) for header in headers.items()],
            body.encode() if isinstance(body, str) else body, list(substitutions), timeout,
        )

    def send(self, method, path, **options):
        """A response with any HTTP status is a success. The options are `headers`, `body` or `json`, `substitutions` and
        `timeout` in milliseconds."""
        return Response(_call(http.send, self._request(method, path, **options)))

    def send_all(self, requests):
        """Sends requests concurrently; each is a dict with the parameters of `send`. Returns a response or an error for
        each, in the same order."""
        results = http.send_all([self._request(**request) for request in requests])
        return [HostError(r.value) if isinstance(r, Err) else Response(r.value) for r in results]

    def subscribe(self, path, wake=(), until=()):
        """Reconciles the object on events of a stream (server-sent events) that match `wake`, and ends the subscription
        after an event that matches `until`. Subscribe first, then read: a change in between then causes a reconcile."""
        _call(http.subscribe, http.Subscription(self.upstream, path, [*wake], [*until]))

    def read_events(self, path, select=(), until=(), max_events=None, max_bytes=None, timeout=None):
        """Reads a stream up to an event that matches `until`, and returns the last of the selected events: `events`,
        `skipped` and `complete`."""
        query = http.EventQuery(self.upstream, path, [*select], [*until], max_events, max_bytes, timeout)
        return _call(http.read_events, query)

    def get(self, path, **options):
        return self.send("GET", path, **options)

    def put(self, path, **options):
        return self.send("PUT", path, **options)

    def post(self, path, **options):
        return self.send("POST", path, **options)

    def patch(self, path, **options):
        return self.send("PATCH", path, **options)

    def delete(self, path, **options):
        return self.send("DELETE", path, **options)

    def publish(self, routing_key, body, exchange="", mandatory=True, **properties):
        """Publishes a message and waits for the confirmation of the broker."""
        properties = types.MessageProperties(**{**_PROPERTIES, **properties})
        body = body.encode() if isinstance(body, str) else body
        message = messaging.Message(exchange, routing_key, properties, body, mandatory)
        _call(messaging.publish, self.upstream, message)


_PROPERTIES = {
    "content_type": None, "content_encoding": None, "headers": [], "persistent": True, "priority": None,
    "correlation_id": None, "reply_to": None, "expiration": None, "message_id": None, "timestamp": None, "type": None,
    "user_id": None, "app_id": None,
}


def _projection(fields):
    return kubernetes.Projection_Fields([*fields]) if fields else kubernetes.Projection_Full()


def _list(api_version, kind, projection, namespace, labels, field_selector, live, cluster):
    items, token = [], None
    while True:
        options = kubernetes.ListOptions(cluster, namespace, labels, field_selector, projection, None, token, live)
        page = _call(kubernetes.list, _gvk(api_version, kind), options)
        items += [json.loads(item) for item in page.items]
        token = page.continue_token
        if token is None:
            return items


class Host:
    """The host functions."""

    def get(self, ref, fields=(), live=False):
        found = _call(kubernetes.get, ref, kubernetes.GetOptions(live, _projection(fields)))
        return None if found is None else json.loads(found)

    def get_metadata(self, ref, live=False):
        """Gets the apiVersion, kind and metadata of an object."""
        found = _call(kubernetes.get, ref, kubernetes.GetOptions(live, kubernetes.Projection_Metadata()))
        return None if found is None else json.loads(found)

    def list(self, api_version, kind, namespace=None, labels=None, field_selector=None, fields=(), live=False, cluster=None):
        return _list(api_version, kind, _projection(fields), namespace, labels, field_selector, live, cluster)

    def list_metadata(self, api_version, kind, namespace=None, labels=None, field_selector=None, live=False, cluster=None):
        """Lists the apiVersion, kind and metadata of objects."""
        projection = kubernetes.Projection_Metadata()
        return _list(api_version, kind, projection, namespace, labels, field_selector, live, cluster)

    def require_ready(self, ref):
        return json.loads(_call(kubernetes.require_ready, ref))

    def require_condition(self, ref, type, status="true"):
        """Gets an object whose condition of this type has this status: `true`, `false` or `unknown`."""
        status = types.ConditionStatus[status.upper()]
        return json.loads(_call(kubernetes.require_condition, ref, type, status))

    def apply_owned(self, object):
        """Applies the given fields to an object that the reconciled object owns."""
        return self.apply(object, owned=True, force=True)

    def apply(self, object, owned=False, force=False, substitutions=(), cluster=None):
        options = kubernetes.ApplyOptions(cluster, owned, force, [*substitutions])
        return json.loads(_call(kubernetes.apply, _json(object), options))

    def create(self, object, owned=False, substitutions=(), cluster=None):
        options = kubernetes.CreateOptions(cluster, owned, [*substitutions])
        return json.loads(_call(kubernetes.create, _json(object), options))

    def patch(self, ref, patch, uid=None, resource_version=None):
        """Applies a JSON merge patch (RFC 7386)."""
        preconditions = kubernetes.Preconditions(uid, resource_version)
        return json.loads(_call(kubernetes.patch, ref, _json(patch), preconditions))

    def patch_subresource(self, ref, subresource, patch, uid=None, resource_version=None):
        """Applies a merge patch to a subresource that has the form of the object, such as `resize` of a Pod."""
        preconditions = kubernetes.Preconditions(uid, resource_version)
        return json.loads(_call(kubernetes.patch_subresource, ref, subresource, _json(patch), preconditions))

    def read_log(self, pod, container=None, tail_lines=100, previous=False):
        """Returns the newest lines of the log of a container. It wakes nobody when the log grows."""
        return _call(kubernetes.read_log, pod, kubernetes.LogOptions(container, tail_lines, previous))

    def delete(self, ref, propagation="background", uid=None, resource_version=None):
        propagation = kubernetes.Propagation[propagation.upper()]
        preconditions = kubernetes.Preconditions(uid, resource_version)
        _call(kubernetes.delete, ref, kubernetes.DeleteOptions(propagation, preconditions))

    def hold(self, ref):
        _call(references.hold, ref)

    def list_holders(self, ref):
        return _call(references.list_holders, ref)

    def acquire_permit(self, pool, limit, held=False):
        """Requests a permit of a pool of `limit` permits. Returns False if the object waits for one: it is reconciled again
        when it gets it. With `held` it has begun already what the permit is for, and gets it in any case. A permit that a
        successful reconcile does not request again is released."""
        return _call(permits.acquire, pool, limit, held)

    def release_permit(self, pool):
        """Releases the permit of the object at once, or ends its wait for one."""
        permits.release(pool)

    def upstream(self, name, namespace=None):
        """Returns a named upstream; without a namespace, in that of the reconciled object."""
        return _Upstream(name, namespace)

    def secret_digest(self, name, key, namespace=None):
        return _call(http.secret_digest, secret(name, key, namespace))

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

    def cache_get(self, key):
        return cache.get(key)

    def cache_set(self, key, value):
        _call(cache.set, key, value)

    def cache_delete(self, key):
        cache.delete(key)


class Delivery:
    """A message that was delivered: `broker`, `queue`, `exchange`, `routing_key`, `properties`, `body` and
    `delivery_count`."""

    def __init__(self, delivery):
        self.__dict__.update(delivery.__dict__)

    def text(self):
        return self.body.decode(errors="replace")

    def json(self):
        return json.loads(self.body)

    def header(self, name, default=None):
        """Returns the value of a header."""
        for header in self.properties.headers:
            if header.name == name:
                return getattr(header.value, "value", default)
        return default


def ack():
    """The message is handled, and removed from its queue."""
    return messages.Disposition_Ack()


def retry_after(milliseconds):
    """The message is delivered again after this many milliseconds."""
    return messages.Disposition_RetryAfter(milliseconds)


def reject(reason):
    """The message can never be handled, and is dead-lettered with this reason."""
    return messages.Disposition_Reject(reason)


def message_handler(handle):
    """Returns the class that a plugin's module exports as `Messages`. `handle(delivery, host)` handles one message, which
    may be delivered more than once. It may create and apply objects and publish messages. After an error of the host the
    message is delivered again with backoff; an error never dead-letters it."""

    class Messages(exports.Messages):
        def handle(self, delivery):
            try:
                return handle(Delivery(delivery), Host())
            except HostError as e:
                raise Err(e.error) from None
            except Exception as e:
                _log_bug(e)
                raise

    return Messages


def lifecycle_hooks(initialize=None, upgrade=None):
    """Returns the class that a plugin's module exports as `Lifecycle`: hooks that run before the first reconcile of a build.
    `initialize(host)` prepares the plugin whenever a host becomes the leader or loads another build; it must be idempotent, and
    there is no reconciled object: references need a namespace. `upgrade(object, host)` upgrades an object, a dict, that an
    earlier version stored, and returns the whole object, or None if there is nothing to change; only labels and annotations may
    differ. The objects of the plugin wait until the hooks have succeeded: the host repeats one that raises an error of the host
    or a failure."""

    def run(step, *parameters):
        try:
            return step(*parameters, Host())
        except HostError as e:
            raise Err(e.error) from None
        except Failure as e:
            raise Err(types.Error_Unavailable(e.message)) from None
        except Exception as e:
            _log_bug(e)
            raise

    class Lifecycle(exports.Lifecycle):
        def initialize(self):
            if initialize:
                run(initialize)

        def upgrade(self, object):
            upgraded = run(upgrade, json.loads(object)) if upgrade else None
            return None if upgraded is None else _json(upgraded)

    return Lifecycle


def _log_bug(error):
    """Reports an exception that is a bug: it ends the instance, as a panic does. The host writes message and location into
    the condition."""
    message = "".join(traceback.format_exception_only(error)).strip()
    library = ("/ostler.py", "/ostler_provider.py", "/ostler_provision.py", "/ostler_types.py")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.endswith(library)]
    location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    log.write(log.Level.ERROR, message, [
        ("exception.location", location), ("exception.stacktrace", traceback.format_exc())])


class Kind:
    """The base class of a kind with its reconciler. `ostler plugin crds` writes the CRD of a kind whose `spec` is a
    dataclass, with its `status`, `plural`, `scope`, `short_names`, `categories` and printer `columns`."""

    group = version = kind = ""
    finalizer = label_selector = None
    phase = False
    spec = status = plural = None
    scope = "Namespaced"
    short_names = categories = columns = ()

    def reconcile(self, object, host):
        """Moves the observed state towards the desired state of an `Object`."""
        raise NotImplementedError

    def cleanup(self, object, host):
        return await_change()


def _read_object(kind, text):
    try:
        return Object(json.loads(text), kind.spec)
    except ValueError as e:
        raise terminal("InvalidSpec", str(e)) from None


def plugin(name, version, *kinds, max_concurrent=None):
    """Returns the class that a plugin's module exports as `Reconciler`."""

    def run(step, request):
        gvk = request.ref.gvk
        try:
            kind = next((k for k in kinds if (k.group, k.kind) == (gvk.group, gvk.kind)), None)
            if kind is None:
                raise terminal("UnknownKind", f"{gvk.kind} is not a kind of this plugin.")
            result = getattr(kind, step)(_read_object(kind, request.object), Host())
            if not isinstance(result, Outcome):
                raise TypeError(f"{step} returned {result!r}: return await_change(), or raise a failure")
            return reconciler.Outcome(result.conditions, result.status, result.next)
        except (Failure, HostError) as e:
            failure = e.failure() if isinstance(e, HostError) else e
            raise Err(reconciler.Failure(
                failure.resolution, failure.reason, failure.message, failure.conditions, failure.status)) from None
        except Exception as e:
            _log_bug(e)
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

    Reconciler.kinds = kinds
    return Reconciler
