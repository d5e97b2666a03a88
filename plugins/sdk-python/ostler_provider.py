"""Service providers: a kind whose service is installed on other clusters for each of its objects, with the cluster requests of
openmcp (`clusters.openmcp.cloud`).

A plugin derives a class from `ServiceProvider` and passes an instance of it to `plugin`. The base class makes the requests,
waits for them, and releases them when the service is gone."""

import hashlib
import json
import re
from typing import NamedTuple

from ostler import Failure, HostError, Kind, await_change, poll, reference, secret, terminal, wait
from ostler_provision import OWNER_LABEL, _check_returned, _merge_failures
from wit_world.exports import reconciler
from wit_world.imports import types

__all__ = [
    "Clusters", "RequestRef", "ServiceProvider", "TargetCluster", "build_stable_name", "request_of_same_name",
]

_PLATFORM = "in-cluster"
"""The host's own cluster: the platform cluster, with the configuration, the requests and the `Cluster` objects."""
_CLUSTER_REQUEST = ("clusters.openmcp.cloud/v1alpha1", "ClusterRequest")
_ACCESS_REQUEST = ("clusters.openmcp.cloud/v1alpha1", "AccessRequest")
_CLUSTER = ("ostler.dev/v1alpha1", "Cluster")
_KUBECONFIG_KEY = "kubeconfig"
"""Key of the kubeconfig in a Secret with credentials."""
_OWNER_ANNOTATION = "provision.ostler.dev/owner-name"
"""Annotation of a request with the kind, namespace and name of its owner. An owner that was restored from a backup has another
uid, and takes its requests over."""
_OWNER_UID_LABEL = "ostler.dev/owner-uid"
"""Label with the uid of the owner, which the host sets on an owned object on another cluster."""
_INVENTORY_ANNOTATION = "ostler.dev/owned-objects"
"""Annotation of an owner with the inventory of the host."""


class RequestRef(NamedTuple):
    """A reference to a `ClusterRequest`."""

    name: str
    namespace: str


class TargetCluster(NamedTuple):
    """A cluster to which access is granted: `namespace/name` of the `Cluster` object, for references, lists and writes, and the
    Secret with the kubeconfig, to name it in another object. A plugin cannot read it."""

    name: str
    secret: object


class Clusters:
    """The clusters of a service. To read one that the provider does not request is a terminal failure."""

    def __init__(self, mcp=None, workload=None):
        self._mcp, self._workload = mcp, workload

    @property
    def mcp(self):
        return _find_requested(self._mcp, "mcp_permissions")

    @property
    def workload(self):
        return _find_requested(self._workload, "workload_permissions")


def _find_requested(cluster, attribute):
    if cluster is None:
        raise terminal("ClusterNotRequested", f"The provider requests no such cluster: set {attribute}.")
    return cluster


def request_of_same_name(metadata):
    """Returns the reference to the ClusterRequest with the name and namespace of an object."""
    return RequestRef(metadata["name"], metadata["namespace"])


def build_stable_name(prefix, metadata):
    """Builds a name that is stable and unique for an object of a kind, such as that of its namespace on a cluster that it shares
    with others: the prefix and a hash of the namespace and name."""
    owner = f"{metadata.get('namespace') or ''}/{metadata['name']}"
    return f"{prefix}-{_hash_text(owner)}"


def _hash_text(text):
    """First 128 bits of the SHA-256 hash in hexadecimal digits. Names of tenants stand beside each other, and nobody can choose a
    name of his own whose hash is that of another one."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ServiceProvider(Kind):
    """The base class of the kind that stands for a service. The kind is namespaced, has a `finalizer`, and its status has the
    fields `phase` and `provider`.

    The requests and `Cluster` objects are in the namespace `requestNamespace` of the plugin's configuration, or else in that of
    the object, which keeps the namespace that it began with. They and the configuration of the provider are on the host's own
    cluster. Permissions are a list of dicts `{"namespace": …, "rules": [{"apiGroups": […], "resources": […], "verbs": […]}]}`,
    each a Role in the namespace, or a ClusterRole without one."""

    phase = True
    provider_name = ""
    """Name of the provider, and of its configuration object, of at most 21 characters. `providerName` in the configuration of
    the plugin replaces it."""
    config_api_version = config_kind = ""
    """The kind of the configuration, which is cluster-scoped."""
    mcp_permissions = None
    """Requests access to a control plane, for whose cluster another controller has made the `ClusterRequest`."""
    workload_permissions = None
    """Requests a workload cluster, and access to it."""

    def find_mcp_request(self, metadata):
        """Returns the reference to the `ClusterRequest` of an object's control plane: by default the one of the same name."""
        return request_of_same_name(metadata)

    def poll_interval(self, config):
        """Returns the interval in Go's syntax (`1m`) at which each object is reconciled besides its changes, and those of what
        it reads, or None: by default the field `pollInterval` of the configuration's spec."""
        return config.get("pollInterval")

    def create_or_update(self, object, config, clusters, host):
        """Installs or updates the service, and returns an outcome, or raises a failure; `wait` while the installation takes its
        time. `config` is the spec of the configuration. The clusters are granted."""
        raise NotImplementedError

    def delete(self, object, config, clusters, host):
        """Removes the service, and returns when nothing is left of it, or raises a failure; `wait` while the removal takes its
        time. It is called for each service whose installation has begun, also without a configuration (None): an administrator
        may have deleted that first."""
        raise NotImplementedError

    def reconcile(self, object, host):
        return _Service(self, object, host).run("install")

    def cleanup(self, object, host):
        return _Service(self, object, host).run("uninstall")


def _to_failure(error):
    return error.failure() if isinstance(error, HostError) else error


def _run_all(*functions):
    """Calls all functions, and returns their results, or raises their failures as one."""
    results, merged = [], None
    for function in functions:
        try:
            results.append(function())
        except (Failure, HostError) as e:
            failure = _to_failure(e)
            merged = failure if merged is None else _merge_failures(merged, failure)
    if merged is not None:
        raise merged
    return results


class _Service:
    """The service of an object. `state` is the field `provider` of its status."""

    def __init__(self, provider, object, host):
        self.provider, self.object, self.host = provider, object, host
        self.metadata = object["metadata"]
        self.state = dict((object.get("status") or {}).get("provider") or {})

    def run(self, step):
        try:
            return self._keep_state(getattr(self, step)())
        except (Failure, HostError) as e:
            raise self._keep_state(_to_failure(e)) from None

    def _keep_state(self, result):
        """Adds the state to the status fields of the domain, which replace those before. Without any, all fields stay."""
        status = getattr(result, "status", None)
        return result if status is None else result.with_status(**{**json.loads(status), "provider": self.state})

    def _read_settings(self):
        config = self.host.config()
        config = config if isinstance(config, dict) else {}

        def text(key, default):
            return config[key] if isinstance(config.get(key), str) else default

        return text("providerName", self.provider.provider_name), text("requestNamespace", self.metadata["namespace"])

    def _checkpoint(self, **changed):
        self.state.update(changed)
        self.host.checkpoint(provider=self.state)

    def _read_config(self, name):
        provider = self.provider
        found = self.host.get(reference(provider.config_api_version, provider.config_kind, name, cluster=_PLATFORM))
        return None if found is None else found.get("spec") or {}

    def _read_config_for_deletion(self, name):
        """Reads the configuration for a deletion. One that is missing, invalid or not permitted does not block it; an outage
        does."""
        try:
            return self._read_config(name)
        except HostError as e:
            outages = (
                types.Error_Unavailable, types.Error_Throttled, types.Error_LimitExceeded, types.Error_Conflict,
                types.Error_NotReady)
            if isinstance(e.error, outages):
                raise
            return None

    def _read_interval(self, name, config):
        text = self.provider.poll_interval(config)
        interval = _parse_duration("0s" if text is None else text)
        if interval is None:
            raise terminal(
                "InvalidConfig",
                f"{self.provider.config_kind} {name}: the poll interval {text} is not a duration. Write it as 1m.")
        return interval

    def install(self):
        name, namespace = self._read_settings()
        config = self._read_config(name)
        if config is None:
            raise wait(
                "ConfigNotFound",
                f"{self.provider.config_kind} {name} does not exist. Create it to configure the provider.")
        interval = self._read_interval(name, config)
        # Before the first request, so that the cleanup finds it, whatever the configuration is then.
        if "requestNamespace" not in self.state:
            self._checkpoint(providerName=name, requestNamespace=namespace)
        clusters = self._request_clusters()
        # Before the first write on a cluster: what may have been installed is removed, and nothing else is waited for.
        if self.state.get("stage") != "Installed":
            self._checkpoint(stage="Installed")
        result = self.provider.create_or_update(self.object, config, clusters, self.host)
        outcome = _check_returned("create_or_update", result)
        if interval > 0 and isinstance(getattr(outcome, "next", None), reconciler.Next_AwaitChange):
            outcome.next = poll(interval).next
        return outcome

    def uninstall(self):
        # Nothing was requested.
        if "requestNamespace" not in self.state:
            return await_change()
        if self.state.get("stage") == "Installed":
            config = self._read_config_for_deletion(self._read_settings()[0])
            _check_returned("delete", self.provider.delete(self.object, config, self._request_clusters(), self.host))
            # With the credentials the host could not do so any more.
            _release_owned(self.metadata, self.host)
            # Before the access is revoked: a request that is missing from now on is not made again.
            self._checkpoint(stage="Removed")
        # Of both roles, also one that an earlier version of the plugin has requested.
        _run_all(_ClusterRole(self, "mcp").release_access, _ClusterRole(self, "workload").release_access)
        return await_change()

    def _request_clusters(self):
        """Requests the clusters. None waits for the other."""

        def request_mcp():
            if self.provider.mcp_permissions is None:
                return None
            request = RequestRef(*self.provider.find_mcp_request(self.metadata))
            return _ClusterRole(self, "mcp").request_access(request, self.provider.mcp_permissions)

        def request_workload():
            if self.provider.workload_permissions is None:
                return None
            return _ClusterRole(self, "workload").request_cluster(self.provider.workload_permissions)

        return Clusters(*_run_all(request_mcp, request_workload))


def _describe(ref, text):
    return f"{ref.gvk.kind} {ref.namespace}/{ref.name}{text}"


def _is_deleting(live):
    return bool(live["metadata"].get("deletionTimestamp"))


class _ClusterRole:
    """A cluster in its role for an object."""

    def __init__(self, service, role):
        kind, state = service.provider, service.state
        self.host, self.owner, self.role = service.host, service.metadata, role
        self.provider, self.namespace = state["providerName"], state["requestNamespace"]
        self.owner_name = f"{kind.kind}.{kind.group} {self.owner['namespace']}/{self.owner['name']}"
        # The same for an object that was restored from a backup.
        self.request_name = self._build_name(self.owner_name)

    def _build_name(self, text):
        return f"{self.provider}-{self.role}-{_hash_text(text)}"

    def _cluster_name(self, uid):
        """Name of the `Cluster`, with the uid: one of an earlier object of the same name may still be there."""
        return self._build_name(f"{self.owner_name} {uid}")

    def _find(self, kind, name):
        return reference(*kind, name, self.namespace, _PLATFORM)

    def request_cluster(self, permissions):
        """Requests a cluster, and access to it."""
        self._apply_request(self._find(_CLUSTER_REQUEST, self.request_name), {"purpose": self.role})
        return self.request_access(RequestRef(self.request_name, self.namespace), permissions)

    def request_access(self, request, permissions):
        """Requests access to the cluster of a `ClusterRequest`, and makes the `Cluster` object for it."""
        spec = {"requestRef": request._asdict(), "token": {"permissions": permissions}}
        granted = self._apply_request(self._find(_ACCESS_REQUEST, self.request_name), spec)
        credentials = granted["status"].get("secretRef") or {}
        if not credentials.get("name"):
            raise wait("AccessRequestPending", f"AccessRequest {self.request_name} has no status.secretRef yet.")
        # Earlier versions of openmcp-operator write the namespace, too.
        if credentials.get("namespace", self.namespace) != self.namespace:
            raise terminal(
                "SecretInOtherNamespace",
                f"AccessRequest {self.request_name}: status.secretRef is in another namespace, where no Cluster can name it.")
        name = self._cluster_name(self.owner["uid"])
        self._apply_cluster(name, credentials["name"])
        return TargetCluster(f"{self.namespace}/{name}", secret(credentials["name"], _KUBECONFIG_KEY, self.namespace))

    def _apply_request(self, ref, spec):
        """Applies a request, and returns it when it is granted."""
        live = self._find_own(ref)
        if live is not None and _is_deleting(live):
            # Another client deletes it. A cleanup uses the access as long as there is one.
            if self.owner.get("deletionTimestamp"):
                return _check_granted(ref, live)
            raise wait("Deprovisioning", _describe(ref, " is being deleted, and is made anew after that."))
        if live is not None:
            self._delete_former_cluster(live)
        return _check_granted(ref, self._apply(ref, spec))

    def _apply_cluster(self, name, secret_name):
        ref = self._find(_CLUSTER, name)
        live = self._find_own(ref)
        if live is not None and _is_deleting(live):
            # It stays until its last user is gone, which is this object, and works until then.
            return
        spec = {"kubeconfigSecretRef": {"name": secret_name, "key": _KUBECONFIG_KEY}}
        if self.owner["namespace"] != self.namespace:
            spec["allowedNamespaces"] = [self.owner["namespace"]]
        self._apply(ref, spec)

    def _apply(self, ref, spec):
        metadata = {
            "name": ref.name, "namespace": self.namespace, "labels": {OWNER_LABEL: self.owner["uid"]},
            "annotations": {_OWNER_ANNOTATION: self.owner_name},
        }
        api_version = f"{ref.gvk.group}/{ref.gvk.version}"
        object = {"apiVersion": api_version, "kind": ref.gvk.kind, "metadata": metadata, "spec": spec}
        return self.host.apply(object, force=True, cluster=_PLATFORM)

    def release_access(self):
        """Deletes the `Cluster`, then the `AccessRequest`, and after that the `ClusterRequest`."""
        # The Cluster is not waited for: the host keeps it until this object is gone, which may need it for its cleanup.
        self._delete_own(self._find(_CLUSTER, self._cluster_name(self.owner["uid"])))
        for kind in (_ACCESS_REQUEST, _CLUSTER_REQUEST):
            ref = self._find(kind, self.request_name)
            if not self._delete_own(ref):
                raise wait("Deprovisioning", _describe(ref, " is being deleted."))

    def _delete_former_cluster(self, request):
        """Deletes the `Cluster` of the owner before it was restored from a backup, whose uid is in its name and on the request.
        It goes before the request gets the new uid, after which nothing would tell its name. The host keeps it for as long as
        the inventory of the owner has objects on it."""
        uid = (request["metadata"].get("labels") or {}).get(OWNER_LABEL)
        if uid is not None and uid != self.owner["uid"]:
            self._delete_own(self._find(_CLUSTER, self._cluster_name(uid)))

    def _delete_own(self, ref):
        """Deletes an object unless it belongs to another owner. Returns true if nothing is left of it."""
        live = self.host.get_metadata(ref)
        if live is None or not self._is_own(live):
            return True
        if ref.gvk.kind != "Cluster":
            self._delete_former_cluster(live)
        if _is_deleting(live):
            return False
        # Not in the foreground: the AccessRequest would wait for the Secret that it owns, and the host keeps that until this
        # object is gone, which waits for the AccessRequest.
        self.host.delete(ref, uid=live["metadata"].get("uid"))
        return self.host.get_metadata(ref) is None

    def _find_own(self, ref):
        live = self.host.get(ref)
        if live is not None and not self._is_own(live):
            raise terminal(
                "NotOwned", _describe(ref, " belongs to another owner. Delete it if that does not exist any more."))
        return live

    def _is_own(self, live):
        labels, annotations = (live["metadata"].get(field) or {} for field in ("labels", "annotations"))
        return labels.get(OWNER_LABEL) == self.owner["uid"] or annotations.get(_OWNER_ANNOTATION) == self.owner_name


def _check_granted(ref, live):
    """Returns a request that is granted in its current generation."""
    status = live.get("status") or {}
    phase, message = status.get("phase") or "Pending", status.get("message") or ""
    # A phase of an earlier generation says nothing about the current spec.
    is_current = status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    if is_current and phase == "Granted":
        return live
    if is_current and phase == "Denied":
        raise terminal(f"{ref.gvk.kind}Denied", _describe(ref, f" is Denied. {message}").rstrip())
    raise wait(f"{ref.gvk.kind}Pending", _describe(ref, f" is not granted yet. {message}").rstrip())


def _release_owned(owner, host):
    """Deletes the objects in the inventory that belong to the owner, and waits until they are gone: on all clusters, since an
    earlier version of the plugin may have requested another one."""
    left = []
    for ref in _list_inventory((owner.get("annotations") or {}).get(_INVENTORY_ANNOTATION) or ""):
        live = host.get_metadata(ref)
        if live is None:
            # The host removes the entry.
            host.delete(ref)
            continue
        # Like the host: an entry alone deletes nothing.
        if (live["metadata"].get("labels") or {}).get(_OWNER_UID_LABEL) != owner["uid"]:
            continue
        if not _is_deleting(live):
            host.delete(ref, uid=live["metadata"].get("uid"))
            if host.get_metadata(ref) is None:
                continue
        left.append(f"{ref.gvk.kind}/{ref.name}")
    if left:
        raise wait("OwnedObjectsRemain", f"Being deleted before the access to the cluster is revoked: {' '.join(left)}")


_ENTRY = re.compile(r"([^. ]+)\.([^. ]+)(?:\.([^ ]+))? ([^ ]+) ([^/ ]*)/([^ ]+)")


def _list_inventory(text):
    """Reads the entries of an inventory, each as `Deployment.v1.apps fleet/east apps/web`."""
    for entry in text.split(", "):
        if parts := _ENTRY.fullmatch(entry):
            kind, version, group, cluster, namespace, name = parts.groups()
            yield reference(f"{group}/{version}" if group else version, kind, name, namespace or None, cluster)


_UNITS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "µs": 1000, "ns": 1}
"""Nanoseconds of each unit of a duration in Go's syntax."""
_MAX_NANOSECONDS = 2**63
"""Bound of a duration, which Go has as well."""
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)(h|ms|m|s|us|µs|ns)"


def _parse_duration(text):
    """Parses a duration in Go's syntax, such as `1h30m`. Returns milliseconds, or None for another text."""
    if not isinstance(text, str) or not re.fullmatch(f"(?:{_NUMBER})+", text):
        return None
    nanoseconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_NUMBER, text))
    return int(nanoseconds // 10**6) if nanoseconds < _MAX_NANOSECONDS else None
