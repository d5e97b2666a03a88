"""A host in memory for native tests of a plugin. A test adds objects with `put` and HTTP responses with `answer`, calls the
plugin as the host does, and then reads back its requests, writes and Events:

    host = TestHost()
    host.answer("GET", "/a", 200, "Hello")
    outcome = host.reconcile(Reconciler, page)

A request without a response raises an error that names the request."""

import copy
import json
import re
import sys
import types as python_types
from types import SimpleNamespace

import ostler_wit as wit

_OWNER_LABEL = "ostler.dev/owner-uid"
_DELETION_TIME = "2026-01-01T00:00:00Z"
_STATUSES = {
    wit.types.ConditionStatus.TRUE: "True", wit.types.ConditionStatus.FALSE: "False",
    wit.types.ConditionStatus.UNKNOWN: "Unknown",
}
_IMPORTS = (
    "cache", "clock", "config", "events", "http", "kubernetes", "log", "messaging", "metrics", "permits", "references",
    "status", "types",
)


class Err(Exception):
    """The error of a function of the contract."""

    def __init__(self, value):
        super().__init__(value)
        self.value = value


def install():
    """Puts the contract's types in the place of the modules that a component has."""
    modules = {
        "componentize_py_types": {"Err": Err},
        "wit_world": {},
        "wit_world.imports": {name: getattr(wit, name) for name in _IMPORTS},
        "wit_world.exports": {
            "reconciler": wit.reconciler, "messages": wit.messages, "lifecycle": wit.lifecycle,
            "Reconciler": object, "Messages": object, "Lifecycle": object,
        },
    }
    for name, members in modules.items():
        module = sys.modules.setdefault(name, python_types.ModuleType(name))
        module.__dict__.update(members)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


install()


class TestFailure(Exception):
    """The result of a reconcile that failed: `resolution`, `reason`, `message`, `conditions` and `status`."""

    __test__ = False

    def __init__(self, failure):
        super().__init__(f"{failure.reason}: {failure.message}")
        self.resolution, self.reason, self.message = failure.resolution, failure.reason, failure.message
        self.conditions, self.status = failure.conditions, _loads(failure.status)


def _loads(data):
    return None if data is None else json.loads(data)


def _dumps(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _at(value, *path):
    """Returns the value at a path, or None."""
    for field in path:
        value = value.get(field) if isinstance(value, dict) else None
    return value


def _gvk(api_version, kind):
    group, _, version = (api_version or "").rpartition("/")
    return wit.types.Gvk(group, version, kind)


def _cluster(name):
    return "" if name in (None, "in-cluster") else name


def _key(ref):
    return (ref.gvk.group, ref.gvk.kind, ref.namespace or "", ref.name, _cluster(ref.cluster))


def _key_on(cluster, object):
    gvk = _gvk(object.get("apiVersion"), object.get("kind"))
    namespace, name = _at(object, "metadata", "namespace"), _at(object, "metadata", "name")
    return (gvk.group, gvk.kind, namespace or "", name or "", _cluster(cluster))


def _format(ref):
    return f"{ref.gvk.kind} {ref.namespace or ''}/{ref.name}"


def _on(cluster):
    return f" on {cluster}" if _cluster(cluster) else ""


def _entry(version, key):
    """Returns an entry of an inventory, such as `Deployment.v1.apps fleet/east apps/web`."""
    group, kind, namespace, name, cluster = key
    return f"{kind}.{version}{'.' if group else ''}{group} {cluster} {namespace}/{name}"


def _invalid(message):
    return Err(wit.types.Error_Invalid(message))


def _not_ready(ref, condition, status, exists, reason="", message=""):
    return Err(wit.types.Error_NotReady(wit.types.NotReady(ref, condition, status, exists, reason, message)))


def _read(data):
    try:
        object = json.loads(data)
    except ValueError as e:
        raise _invalid(str(e)) from None
    if not isinstance(object, dict):
        raise _invalid("this is not an object")
    return object


def _project(object, projection):
    """Returns the part of an object that a read asks for."""
    if isinstance(projection, wit.kubernetes.Projection_Full):
        return object
    part = copy.deepcopy({field: object.get(field) for field in ("apiVersion", "kind", "metadata")})
    for field in getattr(projection, "value", ()):
        _copy_path(object, part, field.split("."))
    return part


def _copy_path(source, to, path):
    first, *rest = path
    if not isinstance(source, dict) or first not in source:
        return
    if not rest:
        to[first] = copy.deepcopy(source[first])
        return
    if not isinstance(to.get(first), dict):
        to[first] = {}
    _copy_path(source[first], to[first], rest)


def _merge_applied(into, source):
    for field, value in source.items():
        if isinstance(into.get(field), dict) and isinstance(value, dict):
            _merge_applied(into[field], value)
        else:
            into[field] = copy.deepcopy(value)


def _merge_patch(into, patch):
    """Applies a JSON merge patch, which removes the fields that are null (RFC 7386)."""
    for field, value in patch.items():
        if value is None:
            into.pop(field, None)
        elif isinstance(value, dict):
            if not isinstance(into.get(field), dict):
                into[field] = {}
            _merge_patch(into[field], value)
        else:
            into[field] = value


def _resize_containers(pod, patch):
    """Sets the resources of containers, which is all that the subresource `resize` takes of a patch."""
    for container in _at(pod, "spec", "containers") or []:
        for resized in _at(patch, "spec", "containers") or []:
            if resized.get("name") == container.get("name"):
                container["resources"] = resized.get("resources")


def _raise_version(object):
    """Raises the resourceVersion of an object that has one, as each write does."""
    version = _at(object, "metadata", "resourceVersion") or ""
    if version.isdigit():
        object["metadata"]["resourceVersion"] = str(int(version) + 1)


def _check_preconditions(object, required):
    for field, value in (("uid", required.uid), ("resourceVersion", required.resource_version)):
        found = _at(object, "metadata", field)
        if value is not None and found != value:
            raise Err(wit.types.Error_Conflict(f"{field} is {found}, the precondition requires {value}"))


class TestHost:
    """A host in memory: a cluster, upstreams, and the record of what the plugin did. The functions of the host are those of the
    one that was made last."""

    __test__ = False

    def __init__(self):
        self._objects, self._uncached, self._created = {}, set(), 0
        # The reference to the object being reconciled, as the objects that it owns have it.
        self._owner = {"uid": ""}
        # What an object owns on other clusters, by its uid.
        self._owned = {}
        self._answers, self._streams, self._secrets, self._failing, self._cache, self._logs = {}, {}, {}, {}, {}, {}
        self._holders, self._held, self._held_before = {}, set(), set()
        self._used_permits, self._permits, self._requested = {}, set(), set()
        self._config, self._now = {}, 0
        self.writes = []
        """The writes to the cluster, each as `apply Kind name`."""
        self.sent = []
        """The requests, as the plugin sent them."""
        self.events = []
        """The reason and note of each Event."""
        self.logs = []
        """The log lines."""
        self.messages = []
        """The published messages with the names of their brokers."""
        self.checkpoints = []
        """The checkpointed status fields."""
        self.subscriptions = []
        """The paths of the subscribed event streams."""
        self._offer()

    def put(self, object):
        """Adds an object to the cluster, or replaces the one of that name."""
        return self.put_on(None, object)

    def put_on(self, cluster, object):
        """Adds an object to another cluster, which is named as the plugin names it."""
        self._objects[_key_on(cluster, object)] = copy.deepcopy(object)
        return self

    def remove(self, ref):
        """Removes an object from the cluster."""
        self._objects.pop(_key(ref), None)
        return self

    def hide_from_cache(self, ref):
        """Hides an object from reads of the cache, as a watch that is behind does. Live reads return it."""
        self._uncached.add(_key(ref))
        return self

    def object(self, ref):
        """Returns the current state of an object, or None."""
        return copy.deepcopy(self._objects.get(_key(ref)))

    def objects(self, api_version, kind):
        """Returns the current state of all objects of a kind, on all clusters, by their names."""
        group = _gvk(api_version, kind).group
        return [copy.deepcopy(object) for key, object in sorted(self._objects.items(), key=lambda item: item[0])
                if key[:2] == (group, kind)]

    def answer(self, method, path, status, body=None, headers=None):
        """Sets the response to a request: this status and body, which is a text, bytes, or a value that is encoded as JSON.
        Further calls for the same request add responses that are returned in turn; the last one stays."""
        if body is None:
            body = b""
        elif isinstance(body, str):
            body = body.encode()
        elif not isinstance(body, bytes):
            body = _dumps(body)
        headers = [wit.http.Header(*header) for header in (headers or {}).items()]
        return self._answer(method, path, wit.http.Response(status, headers, body))

    def answer_error(self, method, path, error):
        """Sets an error of the host as the result of a request: one of `ostler_wit.types.Error_…`."""
        return self._answer(method, path, Err(error))

    def _answer(self, method, path, answer):
        self._answers.setdefault(f"{method} {path}", []).append(answer)
        return self

    def set_stream(self, path, *events):
        """Sets the events of a stream, each as name and data."""
        self._streams[path] = [wit.http.Event(None, name, data) for name, data in events]
        return self

    def set_secret(self, name, key, digest=None):
        """Sets the digest of a key of a Secret; without one it removes the key."""
        self._secrets[name, key] = digest
        return self

    def set_log(self, pod, container, log):
        """Sets the log of a container of a pod; the empty name is that of the only container."""
        self._logs[_key(pod), container] = log
        return self

    def set_config(self, config):
        """Sets the configuration of the plugin."""
        self._config = config
        return self

    def set_now(self, milliseconds):
        """Sets the time, in milliseconds since the Unix epoch."""
        self._now = milliseconds
        return self

    def deny(self, function):
        """Makes a function of the host, such as `kubernetes.apply`, fail as one that is not permitted."""
        return self.fail(function, wit.types.Error_Denied(function))

    def fail(self, function, error=None):
        """Makes a function of the host fail with an error, one of `ostler_wit.types.Error_…`; with None it works again."""
        self._failing[function] = error
        return self

    def add_holder(self, held, holder):
        """Makes an object hold another one, as `list_holders` returns it."""
        self._holders.setdefault(_format(held), []).append(holder)
        return self

    def use_permits(self, pool, count):
        """Lets objects outside of the test have this many permits of a pool."""
        self._used_permits[pool] = count
        return self

    def permits(self, pool):
        """Returns the number of permits of a pool that objects of the test have."""
        return sum(of == pool for of, _ in self._permits)

    @property
    def requests(self):
        """The requests, each as `METHOD /path`."""
        return [f"{request.method.name} {request.path_and_query}" for request in self.sent]

    @property
    def held(self):
        """The objects that the last reconcile holds, each as `Kind namespace/name`. A failed one holds also what the one before
        it held."""
        return sorted(self._held)

    def forget(self):
        """Clears the record of what the plugin did."""
        for record in (self.writes, self.sent, self.events, self.logs, self.messages, self.checkpoints, self.subscriptions):
            record.clear()

    def reconcile(self, reconciler, object):
        """Reconciles an object as the host does, with the class that the plugin exports as `Reconciler`. Returns `conditions`,
        `status` and `next`; raises TestFailure. The object need not name its kind if the plugin reconciles one only."""
        return self._call(reconciler, "reconcile", object)

    def cleanup(self, reconciler, object):
        """Cleans up an object as the host does."""
        return self._call(reconciler, "cleanup", object)

    def _call(self, reconciler, step, given):
        instance, object = reconciler(), copy.deepcopy(given)
        if "kind" not in object:
            kinds = instance.describe().kinds
            if len(kinds) != 1:
                raise ValueError(f"the object names no kind, and the plugin reconciles {len(kinds)}")
            gvk = kinds[0].gvk
            object["apiVersion"], object["kind"] = f"{gvk.group}/{gvk.version}".lstrip("/"), gvk.kind
        metadata = object.setdefault("metadata", {})
        name, namespace, uid = metadata.get("name", ""), metadata.get("namespace"), metadata.get("uid", "")
        if owned := sorted(self._owned.get(uid, ())):
            metadata.setdefault("annotations", {})["ostler.dev/owned-objects"] = ", ".join(owned)
        self._owner = {
            "apiVersion": object["apiVersion"], "kind": object["kind"], "name": name, "uid": uid, "controller": True,
        }
        ref = wit.types.ObjectRef(_gvk(object["apiVersion"], object["kind"]), None, namespace, name)
        self._held_before |= self._held
        self._held.clear()
        succeeded = False
        try:
            outcome = getattr(instance, step)(wit.reconciler.Request(_dumps(object), ref, 0, ["change"]))
            succeeded = True
            return SimpleNamespace(conditions=outcome.conditions, status=_loads(outcome.status), next=outcome.next)
        except Err as e:
            raise TestFailure(e.value) from None
        finally:
            self._settle(succeeded)

    def _settle(self, succeeded):
        """Releases what a successful reconcile has not held or requested again."""
        if succeeded:
            uid = self._owner["uid"]
            self._permits = {permit for permit in self._permits if permit[1] != uid or permit in self._requested}
        else:
            self._held |= self._held_before
        self._held_before.clear()
        self._requested.clear()

    def handle(self, messages, queue="", body=b"", **fields):
        """Gives a message to the class that the plugin exports as `Messages`, and returns the disposition. The body is bytes, a
        text, or a value that is encoded as JSON; `fields` are other fields of the delivery."""
        body = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else _dumps(body)
        names = wit.types.MessageProperties.__dataclass_fields__
        properties = {**dict.fromkeys(names), "headers": [], "persistent": True, **fields.pop("properties", {})}
        delivery = {
            "broker": wit.types.UpstreamRef(None, "default", "broker"), "queue": queue, "exchange": "", "routing_key": queue,
            "properties": wit.types.MessageProperties(**properties), "body": body, "delivery_count": 0, **fields,
        }
        return messages().handle(wit.messages.Delivery(**delivery))

    def initialize(self, lifecycle):
        """Calls `initialize` of the class that the plugin exports as `Lifecycle`."""
        lifecycle().initialize()

    def upgrade(self, lifecycle, object):
        """Calls `upgrade` of the class that the plugin exports as `Lifecycle`, and returns the upgraded object, or None."""
        return _loads(lifecycle().upgrade(_dumps(object)))

    def _check(self, function):
        if error := self._failing.get(function):
            raise Err(error)

    def _offer(self):
        """Makes the functions of this host those of the contract. Each fails if the test wants it to."""
        functions = {
            wit.kubernetes: (
                self._get, self._list, self._require_ready, self._require_condition, self._apply, self._create, self._patch,
                self._patch_subresource, self._delete, self._read_log,
            ),
            wit.references: (self._hold, self._list_holders),
            wit.permits: (self._acquire, self._release),
            wit.http: (self._send, self._send_all, self._secret_digest, self._subscribe, self._read_events),
            wit.messaging: (self._publish,),
            wit.status: (self._checkpoint,),
        }
        for interface, offered in functions.items():
            for function in offered:
                name = function.__name__.strip("_")
                setattr(interface, name, self._checked(f"{interface.__name__}.{name.replace('_', '-')}", function))
        wit.events.emit = lambda type, reason, note: self.events.append((reason, note))
        wit.log.write = lambda level, message, fields: self.logs.append(message)
        wit.metrics.counter = lambda name, delta: None
        wit.metrics.gauge = lambda name, value: None
        wit.clock.now = lambda: self._now
        wit.clock.remaining = lambda: 60_000
        wit.config.get = lambda: _dumps(self._config)
        wit.cache.get = self._cache.get
        wit.cache.set = self._cache.__setitem__
        wit.cache.delete = lambda key: self._cache.pop(key, None)

    def _checked(self, name, function):
        def call(*parameters):
            self._check(name)
            return function(*parameters)

        return staticmethod(call)

    def _send(self, request):
        self.sent.append(request)
        name = self.requests[-1]
        answers = self._answers.get(name)
        if not answers:
            raise AssertionError(f"unexpected request: {name}")
        # The last answer stays.
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Err):
            raise answer
        return answer

    def _send_all(self, requests):
        results = []
        for request in requests:
            try:
                self._check("http.send")
                results.append(SimpleNamespace(value=self._send(request)))
            except Err as e:
                results.append(e)
        return results

    def _secret_digest(self, secret):
        return self._secrets.get((secret.name, secret.key))

    def _subscribe(self, subscription):
        self.subscriptions.append(subscription.path_and_query)

    def _read_events(self, query):
        events = self._streams.get(query.path_and_query)
        if events is None:
            raise AssertionError(f"unexpected event stream: {query.path_and_query}")
        skipped = 0 if query.max_events is None else max(0, len(events) - query.max_events)
        return wit.http.EventTail(events[skipped:], skipped, True)

    def _publish(self, broker, message):
        self.messages.append((broker.name, message))

    def _checkpoint(self, fields):
        self.checkpoints.append(json.loads(fields))

    def _acquire(self, pool, limit, held):
        permit = (pool, self._owner["uid"])
        granted = held or permit in self._permits or self._used_permits.get(pool, 0) + self.permits(pool) < limit
        if granted:
            self._permits.add(permit)
            self._requested.add(permit)
        return granted

    def _release(self, pool):
        permit = (pool, self._owner["uid"])
        self._permits.discard(permit)
        self._requested.discard(permit)

    def _get(self, ref, options):
        object = self._objects.get(_key(ref))
        if object is None or not options.live and _key(ref) in self._uncached:
            return None
        return _dumps(_project(object, options.projection))

    def _list(self, gvk, options):
        try:
            selects = parse_selectors(options.label_selector, options.field_selector)
        except ValueError as e:
            raise _invalid(str(e)) from None
        found = [
            object for key, object in sorted(self._objects.items(), key=lambda item: item[0])
            if key[:2] == (gvk.group, gvk.kind) and key[4] == _cluster(options.cluster)
            and (options.namespace is None or options.namespace == key[2])
            and (options.live or key not in self._uncached) and selects(object)
        ]
        # There are no pages: a limit selects the first objects, and no token continues.
        return wit.kubernetes.Page([_dumps(_project(object, options.projection)) for object in found[:options.limit]], None)

    def _require_ready(self, ref):
        object = self._objects.get(_key(ref))
        if object is None or ref.gvk.group not in BUILT_IN_GROUPS:
            return self._require_condition(ref, "Ready", wit.types.ConditionStatus.TRUE)
        if cause := check_ready(ref.gvk.group, ref.gvk.kind, object):
            raise _not_ready(ref, "Ready", wit.types.ConditionStatus.TRUE, True, *cause)
        return _dumps(object)

    def _require_condition(self, ref, type, status):
        object = self._objects.get(_key(ref))
        condition = _find_condition(object, type) or {}
        if condition.get("status") == _STATUSES[status]:
            return _dumps(object)
        raise _not_ready(ref, type, status, object is not None, condition.get("reason", ""), condition.get("message", ""))

    def _apply(self, data, options):
        return self._write("apply", data, options)

    def _create(self, data, options):
        return self._write("create", data, options)

    def _write(self, verb, data, options):
        object = _read(data)
        key = _key_on(options.cluster, object)
        name, before = key[3], self._objects.get(key)
        if options.owned:
            self._own(object, key, before)
        if verb == "create" and before is not None:
            raise Err(wit.types.Error_Conflict(f"{name} exists"))
        after = copy.deepcopy(before) or {}
        _merge_applied(after, object)
        # The host does not send a write that changes nothing.
        if before != after:
            if before is None and not _at(after, "metadata", "uid"):
                self._created += 1
                after.setdefault("metadata", {})["uid"] = f"00000000-0000-4000-8000-{self._created:012x}"
            _raise_version(after)
            self.writes.append(f"{verb} {key[1]} {name}{' owned' if options.owned else ''}{_on(options.cluster)}")
        self._objects[key] = after
        return _dumps(after)

    def _own(self, object, key, live):
        """Marks an object as one that the reconciled object owns. Owner references do not cross clusters."""
        uid, metadata = self._owner["uid"], object.setdefault("metadata", {})
        metadata.setdefault("labels", {})[_OWNER_LABEL] = uid
        if not key[4]:
            metadata["ownerReferences"] = [dict(self._owner)]
            return
        mark = _at(live, "metadata", "labels", _OWNER_LABEL)
        if mark not in (None, uid):
            raise Err(wit.types.Error_Conflict(f"{key[3]}: another object owns it"))
        version = _gvk(object.get("apiVersion"), key[1]).version
        self._owned.setdefault(uid, set()).add(_entry(version, key))

    def _patch(self, ref, data, preconditions):
        return self._write_patch(ref, None, data, preconditions)

    def _patch_subresource(self, ref, subresource, data, preconditions):
        return self._write_patch(ref, subresource, data, preconditions)

    def _write_patch(self, ref, subresource, data, preconditions):
        patch, found = _read(data), self._objects.get(_key(ref))
        if found is None:
            raise Err(wit.types.Error_NotFound(_format(ref)))
        _check_preconditions(found, preconditions)
        object = copy.deepcopy(found)
        if subresource == "resize":
            _resize_containers(object, patch)
        else:
            _merge_patch(object, patch)
        _raise_version(object)
        part = f"/{subresource}" if subresource else ""
        self.writes.append(f"patch {ref.gvk.kind}{part} {ref.name}{_on(ref.cluster)}")
        self._objects[_key(ref)] = object
        return _dumps(object)

    def _delete(self, ref, options):
        key = _key(ref)
        found = self._objects.get(key)
        if found is not None:
            _check_preconditions(found, options.preconditions)
        self._objects.pop(key, None)
        if found is not None and options.propagation is wit.kubernetes.Propagation.FOREGROUND:
            object = copy.deepcopy(found)
            finalizers = list(_at(object, "metadata", "finalizers") or [])
            if self._has_dependents(object) and "foregroundDeletion" not in finalizers:
                finalizers.append("foregroundDeletion")
            # One with finalizers stays until they are gone.
            if finalizers:
                object["metadata"].update(finalizers=finalizers, deletionTimestamp=_DELETION_TIME)
                self._objects[key] = object
        if key not in self._objects:
            self._owned.get(self._owner["uid"], set()).discard(_entry(ref.gvk.version, key))
        if found is not None and not _at(found, "metadata", "deletionTimestamp"):
            self.writes.append(f"delete {ref.gvk.kind} {ref.name}{_on(ref.cluster)}")

    def _has_dependents(self, object):
        """Returns whether another object has an owner reference to this one."""
        uid = _at(object, "metadata", "uid")
        owners = (owner for other in self._objects.values() for owner in _at(other, "metadata", "ownerReferences") or [])
        return bool(uid) and any(owner.get("uid") == uid for owner in owners)

    def _read_log(self, pod, options):
        if _key(pod) not in self._objects:
            raise Err(wit.types.Error_NotFound(f"Pod {pod.name} not found"))
        log = self._logs.get((_key(pod), options.container or ""))
        if log is None:
            raise _invalid(f"a container of pod {pod.name} is waiting to start")
        return "".join(log.splitlines(keepends=True)[-options.tail_lines:])

    def _hold(self, ref):
        object = self._objects.get(_key(ref))
        if object is None:
            raise Err(wit.types.Error_NotFound(_format(ref)))
        # One that is held already may be held on.
        if _at(object, "metadata", "deletionTimestamp") and _format(ref) not in self._held_before:
            raise _not_ready(ref, "Ready", wit.types.ConditionStatus.TRUE, True, "", "It is being deleted.")
        self._held.add(_format(ref))

    def _list_holders(self, ref):
        return self._holders.get(_format(ref), [])


def parse_selectors(labels, fields):
    """Returns a function that evaluates selectors; raises ValueError with the part that is wrong."""
    requirements = [_parse_label(part.strip()) for part in _split(labels or "")]
    comparisons = [_parse_field(part) for part in (fields or "").split(",")] if (fields or "").strip() else []

    def selects(object):
        found = _at(object, "metadata", "labels") or {}
        return all(holds(found) for holds in requirements) and all(holds(object) for holds in comparisons)

    return selects


def _split(text):
    """Splits at commas that are not inside of parentheses."""
    parts, start, depth = [], 0, 0
    for i, letter in enumerate(text):
        if letter == "(" and depth == 0:
            depth = 1
        elif letter == ")" and depth == 1:
            depth = 0
        elif letter in "()":
            raise ValueError(f"unbalanced parenthesis at `{text[i:]}`")
        elif letter == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    if depth:
        raise ValueError(f"unbalanced parenthesis at `{text}`")
    return [*parts, text[start:]] if text.strip() else []


_LABEL_KEY = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_INTEGER = re.compile(r"[+-]?\d+")


def _parse_label(part):
    key, operator, values = part, "exists", []
    if part.startswith("!"):
        key, operator = part[1:].strip(), "absent"
    elif found := re.fullmatch(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)", part):
        key, operator, values = found[1], found[2], [value.strip() for value in found[3].split(",")]
    elif found := re.fullmatch(r"(?s)(.*?)(>|<|!=|==|=)(.*)", part):
        key, operator, values = found[1].strip(), found[2], [found[3].strip()]
    if not _LABEL_KEY.fullmatch(key):
        raise ValueError(f"not the key of a label at `{part}`")
    if operator in ("<", ">") and not _INTEGER.fullmatch(values[0]):
        raise ValueError(f"not a whole number at `{part}`")

    def holds(labels):
        value = labels.get(key)
        match operator:
            case "exists":
                return value is not None
            case "absent":
                return value is None
            case "notin" | "!=":
                return value not in values
            case ">" | "<":
                is_number = value is not None and _INTEGER.fullmatch(value)
                return bool(is_number) and (int(value) > int(values[0]) if operator == ">" else int(value) < int(values[0]))
        return value in values

    return holds


def _parse_field(part):
    """Parses a comparison of a field. A field that is missing counts as empty."""
    found = re.fullmatch(r"(?s)(.*?)(!=|==|=)(.*)", part)
    if not found:
        raise ValueError(f"`=` or `!=` is missing at `{part}`")
    path, operator, value = found[1].strip(), found[2], found[3].strip()
    if "" in path.split(".") or re.search(r"\s", path):
        raise ValueError(f"not the path of a field at `{part}`")

    def holds(object):
        there = _at(object, *path.split("."))
        text = "" if there is None else there if isinstance(there, str) else json.dumps(there, separators=(",", ":"))
        return (text == value) == (operator != "!=")

    return holds


# API groups of Kubernetes itself.
BUILT_IN_GROUPS = {
    "", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "authentication.k8s.io",
    "authorization.k8s.io", "autoscaling", "batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io",
    "events.k8s.io", "flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "networking.k8s.io", "node.k8s.io",
    "policy", "rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
}


def _find_condition(object, type):
    for condition in _at(object, "status", "conditions") or []:
        if condition.get("type") == type:
            return condition
    return None


def _find_true(object, type):
    condition = _find_condition(object, type)
    return condition if condition and condition.get("status") == "True" else None


def _of_condition(condition):
    return condition.get("reason") or "", condition.get("message") or ""


def _require_true(object, type):
    condition = _find_condition(object, type)
    if condition is None:
        return "ConditionMissing", f"it has no condition {type} yet"
    return None if condition.get("status") == "True" else _of_condition(condition)


def _require_phase(*ready):
    def check(object):
        phase = _at(object, "status", "phase")
        if not isinstance(phase, str):
            return "PhaseMissing", "it has no phase yet"
        return None if phase in ready else (phase, f"its phase is {phase}")

    return check


def _count(object, field):
    """Returns a count in the status, which controllers leave out if it is 0."""
    return _at(object, "status", field) or 0


def _desired(object):
    replicas = _at(object, "spec", "replicas")
    return 1 if replicas is None else replicas


def _require_counts(object, desired, *counts):
    for field, reason, done in counts:
        count = _count(object, field)
        if done is None and count > desired:
            return reason, f"{count - desired} old pods are not removed yet"
        if done is not None and count < desired:
            return reason, f"{count} of {desired} pods are {done}"
    return None


_NO_EXCESS = ("replicas", "PodsNotRemoved", None)
_CREATED = ("replicas", "PodsNotCreated", "created")
_UPDATED = ("updatedReplicas", "PodsNotUpdated", "updated")
_AVAILABLE = ("availableReplicas", "PodsNotAvailable", "available")
_READY = ("readyReplicas", "PodsNotReady", "ready")


def check_ready(group, kind, object):
    """Returns reason and message of the cause for which an object of a built-in kind is not ready for its current generation, or
    None. The rules are those of the host."""
    if _at(object, "metadata", "deletionTimestamp") is not None:
        return "Terminating", "it is being deleted"
    observed, generation = _at(object, "status", "observedGeneration"), _at(object, "metadata", "generation")
    has_controller = group == "apps" and kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet") or (
        group == "policy" and kind == "PodDisruptionBudget")
    if observed != generation and (has_controller or observed is not None):
        shown = "null" if generation is None else generation
        return "GenerationNotObserved", f"its controller has not observed generation {shown} yet"
    if check := _CHECKS.get((group, kind)):
        return check(object)
    return _require_true(object, "Ready") if _find_condition(object, "Ready") else None


def _check_deployment(object):
    progressing = _find_condition(object, "Progressing")
    if progressing and progressing.get("reason") == "ProgressDeadlineExceeded":
        return _of_condition(progressing)
    if failure := _find_true(object, "ReplicaFailure"):
        return _of_condition(failure)
    if missing := _require_counts(object, _desired(object), _CREATED, _UPDATED, _NO_EXCESS, _AVAILABLE, _READY):
        return missing
    return _require_true(object, "Available") if _find_condition(object, "Available") else None


def _check_stateful_set(object):
    # Its pods are updated when their administrator deletes them.
    if _at(object, "spec", "updateStrategy", "type") == "OnDelete":
        return None
    desired = _desired(object)
    if missing := _require_counts(object, desired, _CREATED, _READY, _NO_EXCESS):
        return missing
    partition = _at(object, "spec", "updateStrategy", "rollingUpdate", "partition") or 0
    if partition > 0:
        return _require_counts(object, max(0, desired - partition), _UPDATED)
    if _at(object, "status", "currentRevision") != _at(object, "status", "updateRevision"):
        return "PodsNotUpdated", f"{_count(object, 'updatedReplicas')} of {desired} pods are updated"
    return None


def _check_daemon_set(object):
    desired = _at(object, "status", "desiredNumberScheduled")
    if desired is None:
        return "PodsNotScheduled", "its pods are not counted yet"
    counts = [("currentNumberScheduled", "PodsNotScheduled", "scheduled")]
    if _at(object, "spec", "updateStrategy", "type") != "OnDelete":
        counts.append(("updatedNumberScheduled", "PodsNotUpdated", "updated"))
    counts += [("numberAvailable", "PodsNotAvailable", "available"), ("numberReady", "PodsNotReady", "ready")]
    return _require_counts(object, desired, *counts)


def _check_replica_set(object):
    if failure := _find_true(object, "ReplicaFailure"):
        return _of_condition(failure)
    labelled = ("fullyLabeledReplicas", "PodsNotCreated", "created")
    return _require_counts(object, _desired(object), labelled, _AVAILABLE, _READY, _NO_EXCESS)


def _check_job(object):
    if failed := _find_true(object, "Failed"):
        return _of_condition(failed)
    if _find_true(object, "Complete"):
        return None
    if suspended := _find_true(object, "Suspended"):
        return _of_condition(suspended)
    active, succeeded, failed = (_count(object, field) for field in ("active", "succeeded", "failed"))
    return "JobNotComplete", f"it is not complete: {active} pods active, {succeeded} succeeded, {failed} failed"


def _check_pod(object):
    """Checks a pod. One that has succeeded is ready."""
    status = object.get("status") or {}
    if status.get("phase") == "Succeeded":
        return None
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        reason = _at(container, "state", "waiting", "reason")
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            message = _at(container, "state", "waiting", "message") or "it waits"
            return reason, f"container {container.get('name', '')}: {message}"
    if status.get("phase") == "Failed":
        return status.get("reason") or "Failed", status.get("message") or "its phase is Failed"
    scheduled = _find_condition(object, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        return _of_condition(scheduled)
    return _require_true(object, "Ready")


def _check_service(object):
    has_address = _at(object, "spec", "externalIPs") or _at(object, "status", "loadBalancer", "ingress")
    if _at(object, "spec", "type") != "LoadBalancer" or has_address:
        return None
    return "AddressPending", "its load balancer has no address yet"


def _check_crd(object):
    accepted = _find_condition(object, "NamesAccepted")
    if accepted and accepted.get("status") == "False":
        return _of_condition(accepted)
    return _require_true(object, "Established")


def _check_certificate_request(object):
    if refused := _find_true(object, "Denied") or _find_true(object, "Failed"):
        return _of_condition(refused)
    return None if _at(object, "status", "certificate") else ("CertificatePending", "its certificate is not issued yet")


_CHECKS = {
    ("apps", "Deployment"): _check_deployment,
    ("apps", "StatefulSet"): _check_stateful_set,
    ("apps", "DaemonSet"): _check_daemon_set,
    ("apps", "ReplicaSet"): _check_replica_set,
    ("", "ReplicationController"): _check_replica_set,
    ("batch", "Job"): _check_job,
    ("", "Pod"): _check_pod,
    ("", "Service"): _check_service,
    ("", "PersistentVolumeClaim"): _require_phase("Bound"),
    ("", "PersistentVolume"): _require_phase("Available", "Bound"),
    ("", "Namespace"): _require_phase("Active"),
    ("", "Node"): lambda object: _require_true(object, "Ready"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _check_crd,
    ("apiregistration.k8s.io", "APIService"): lambda object: _require_true(object, "Available"),
    ("certificates.k8s.io", "CertificateSigningRequest"): _check_certificate_request,
}
