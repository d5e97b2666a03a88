//! Names that users see in objects and set in the environment: annotations, finalizers, condition types, reasons and
//! environment variables.
//!
//! This is the only place that spells them, and `docs/api.md` is generated from it. A name that is no longer used is a
//! `dead_code` warning, and a test (`cli/api_reference.rs`) refuses a literal that is spelled elsewhere.

// Only the development commands use some of them.
#![cfg_attr(not(feature = "dev"), allow(dead_code))]

/// Field manager of the host's own writes. A plugin writes as `ostler-NAME`.
pub const HOST_FIELD_MANAGER: &str = "ostler";
/// Field manager of what `ostler suspend` and `resume` write for their user.
pub const COMMAND_FIELD_MANAGER: &str = "ostler-command";

/// A documented name.
#[cfg(test)]
pub struct WellKnown {
    /// Name of the constant.
    pub constant: &'static str,
    /// The name as users see it.
    pub name: &'static str,
    /// The values of an annotation, the status that a reason stands for, or empty.
    pub values: &'static str,
    /// The meaning: the documentation of the constant.
    pub meaning: &'static str,
}

macro_rules! well_known {
    ($($(#[$about:meta])* $module:ident {
        $($(#[doc = $meaning:literal])+ $constant:ident = $name:literal $(, $values:literal)?;)+
    })+) => {
        $(
            $(#[$about])*
            pub mod $module {
                $($(#[doc = $meaning])+ pub const $constant: &str = $name;)+

                /// All of them, in the order of the API reference.
                #[cfg(test)]
                pub const ALL: &[super::WellKnown] = &[$(super::WellKnown {
                    constant: stringify!($constant),
                    name: $name,
                    values: concat!($($values)?),
                    meaning: concat!($($meaning),+),
                }),+];
            }
        )+
    };
}

well_known! {
    /// Annotations that users set.
    annotation {
        /// On a reconciled object: it is not reconciled while this is set. A deletion still cleans up.
        PAUSED = "ostler.dev/paused", "`true`";
        /// On a reconciled object or a Plugin: it is reconciled at once when the value changes, whatever its backoff.
        RECONCILE_NOW = "ostler.dev/reconcile-now", "any new value, such as a time";
        /// On an object that is being deleted: its finalizer is removed without cleanup. On a Plugin that is being
        /// deleted: the finalizers of all its objects are removed without cleanup. On a Cluster: what objects own there is
        /// let go when they are deleted, for a cluster that is gone for good.
        DELETION_POLICY = "ostler.dev/deletion-policy", "`Orphan`";
        /// On an object that is being deleted: its finalizer and those of its holders are removed at once, without
        /// cleanup. On a Plugin that is being deleted: it is removed, and its objects keep their finalizers.
        FORCE_DELETE = "ostler.dev/force-delete", "`true`";
        /// On a Secret: the origins that the host may send it to, for Upstreams and in requests. It is not inserted into
        /// objects then. Without it, the writers of Upstreams in its namespace and the grants of plugins decide.
        ORIGINS = "ostler.dev/origins", "comma-separated origins, such as `https://ci.example.com, https://*.example.com`";
        /// On a sample of a plugin project: the condition that `ostler plugin test` expects instead of `Ready`. Nothing on a
        /// cluster reads it.
        EXPECT = "ostler.dev/expect", "`TYPE`, `TYPE/REASON` or `TYPE=STATUS/REASON`, such as `Stalled/InvalidSpec`";
    }

    /// Annotations and finalizers that the host writes.
    bookkeeping {
        /// Finalizer of a Plugin whose objects have finalizers: the Plugin stays until they are cleaned up.
        PLUGIN_FINALIZER = "ostler.dev/plugin", "finalizer";
        /// Annotation of such a Plugin: the kinds and finalizers of its builds, also of former ones, whose objects may have them.
        BUILD_FINALIZERS = "ostler.dev/build-finalizers", "annotation";
        /// Finalizer of an Upstream that is used for objects with a finalizer, and of the Secrets it names: they stay until
        /// the last of these objects has been cleaned up.
        UPSTREAM_PROTECTION = "ostler.dev/upstream-protection", "finalizer";
        /// Finalizer of a Cluster that is used for objects with a finalizer, and of its Secret, as that of an Upstream.
        CLUSTER_PROTECTION = "ostler.dev/cluster-protection", "finalizer";
        /// Finalizer of a RoleBinding of the host or of a plugin, and of the Role that it refers to: they stay until the objects
        /// of their namespace are gone that need them for their cleanup.
        RIGHTS_PROTECTION = "ostler.dev/rights-protection", "finalizer";
        /// Annotation of an object with a finalizer: the Upstreams and Clusters that it has used, and needs for its cleanup. It
        /// is removed with the finalizer.
        USED_CONNECTIONS = "ostler.dev/used-connections", "annotation";
        /// Annotation of an Upstream or Cluster that is used for objects with a finalizer: the kinds and namespaces of these
        /// objects.
        USED_BY = "ostler.dev/used-by", "annotation";
        /// Annotation of such an Upstream or Cluster: the Secrets that are kept with it.
        PROTECTED_SECRETS = "ostler.dev/protected-secrets", "annotation";
        /// Annotation of an object that owns others on other clusters: the list of these objects.
        OWNED_OBJECTS = "ostler.dev/owned-objects", "annotation";
        /// Label of an owned object: the UID of the owner. The host watches owned objects by it. On another cluster than the
        /// owner's only an object with this label is deleted with the owner.
        OWNER_UID = "ostler.dev/owner-uid", "label";
        /// Annotation of such an object: the owner.
        OWNER = "ostler.dev/owner", "annotation";
        /// Annotation of an object that holds others: the list of the objects it holds.
        HOLDS = "ostler.dev/holds", "annotation";
        /// Finalizer and annotation of a held object, one per holder, with the UID of the holder behind the slash. The
        /// value of the annotation names the holder. The held object is deleted when all holders have released it.
        HELD_BY = "held-by.ostler.dev/", "finalizer and annotation";
        /// Annotation of an object that a plugin applies, with the name of the plugin behind the slash: a digest of what it
        /// applied last. The next leader sends nothing while the digest and the applied fields are the same.
        APPLIED = "applied.ostler.dev/", "annotation";
        /// Annotation of a Secret into which the host has inserted secrets for a plugin, with a digest of the key in `data`
        /// behind the slash. The value is the key, whose value no plugin reads.
        SUBSTITUTED = "substituted.ostler.dev/", "annotation";
        /// Annotation of the Lease: namespace, pod, port and certificate of the leader's secure address, by which `kubectl ostler` reaches
        /// it.
        SECURE_ENDPOINT = "ostler.dev/secure-endpoint", "annotation";
        /// Label of the service account, roles and bindings that `ostler plugin install` applies for a plugin, with its name.
        PLUGIN_LABEL = "ostler.dev/plugin-name", "label";
    }

    /// Condition types that the host writes.
    condition_type {
        /// On every object: it is as its spec requires. A component may set it with a reason of its own.
        READY = "Ready", "any kind";
        /// On every object that is not Ready: work goes on, or is retried. Set only while True (kstatus).
        RECONCILING = "Reconciling", "any kind";
        /// On every object that is not Ready: nothing happens until the object, a grant or its environment changes. Set
        /// only while True (kstatus).
        STALLED = "Stalled", "any kind";
        /// The annotation `ostler.dev/paused` suspends the reconciliation. Set only while True.
        PAUSED = "Paused", "reconciled kinds";
        /// The deletion takes longer than `--deletion-deadline`, or another object holds this one. The message names the
        /// remedies. Set only while True.
        DELETION_BLOCKED = "DeletionBlocked", "reconciled kinds";
        /// The reconciles of the object form a hot loop, and are throttled. Set only while True.
        HOT_LOOP = "HotLoop", "reconciled kinds";
        /// The newest build of the plugin is loaded and reconciles.
        LOADED = "Loaded", "Plugin";
        /// All permissions that the manifest requests are granted. A missing one does not keep the plugin from loading.
        GRANTED = "Granted", "Plugin";
        /// The build that reconciles does not trap, was not rolled back, and its life-cycle hook `initialize` has succeeded.
        HEALTHY = "Healthy", "Plugin";
        /// The signatures of a build that was accepted before could not be checked by the keys of now, and it serves on. Set
        /// only while True; the reason is that of the failed look-up.
        UNVERIFIED = "Unverified", "Plugin";
        /// The last request or probe reached the service.
        CONNECTED = "Connected", "Upstream, Cluster";
        /// The service accepts the credentials.
        AUTHENTICATED = "Authenticated", "Upstream, Cluster";
    }

    /// Reasons of the conditions of reconciled objects. A component adds reasons of its own.
    object_reason {
        /// The component reported success and no Ready condition of its own.
        READY = "Ready", "Ready=True";
        /// The annotation `ostler.dev/paused` is `true`.
        PAUSED_BY_ANNOTATION = "PausedByAnnotation", "Paused=True";
        /// The object is not reconciled, because the annotation `ostler.dev/paused` is `true`.
        PAUSED = "Paused", "Ready=False";
        /// The deletion runs: the component's cleanup has not finished.
        TERMINATING = "Terminating", "Ready=False";
        /// Owned objects on other clusters remain, and the deletion waits for them. The message names them and the causes.
        OWNED_OBJECTS_REMAIN = "OwnedObjectsRemain", "Ready=False";
        /// Other objects hold this one, and its deletion waits for them. The message names them.
        HELD = "Held", "Ready=False, DeletionBlocked=True";
        /// Another writer reverts what the reconciles of the object write.
        CONFLICTING_WRITER = "ConflictingWriter", "HotLoop=True";
        /// Each reconcile writes and requests the next one at once.
        TIGHT_REQUEUE_LOOP = "TightRequeueLoop", "HotLoop=True";
        /// The plugin may not read the object: its grants, or RBAC for its service account, do not allow it.
        PERMISSION_DENIED = "PermissionDenied", "Ready=False";
        /// The life-cycle hook `upgrade` of the plugin failed for the object, and is retried with a backoff.
        UPGRADE_FAILED = "UpgradeFailed", "Ready=False";
        /// The call exceeded the limit `cpuTime` or `timeout`.
        PLUGIN_TIMEOUT = "PluginTimeout", "Ready=False";
        /// The call exceeded the limit `memory` or `tableElements`.
        PLUGIN_OUT_OF_MEMORY = "PluginOutOfMemory", "Ready=False";
        /// The component trapped: a bug in the plugin.
        PLUGIN_TRAPPED = "PluginTrapped", "Ready=False";
        /// The host has had no memory or instance left for several attempts in a row. The next one comes with a backoff.
        HOST_EXHAUSTED = "HostExhausted", "Ready=False";
        /// The status that the component returned is not a JSON object, has a condition that Kubernetes does not allow, or exceeds a limit.
        INVALID_STATUS = "InvalidStatus", "Ready=False";
        /// The fields of the object are nested too deeply to be read. It is neither reconciled nor cleaned up.
        NESTED_TOO_DEEPLY = "NestedTooDeeply", "Ready=False, DeletionBlocked=True";
        /// The referenced object is being deleted, so it cannot be held.
        DELETING = "Deleting", "error `not-ready` of `hold`";
        /// The component gave a reason that the API server would refuse. The host wrote this one instead.
        UNSPECIFIED = "Unspecified", "any condition";
    }

    /// Reasons of the conditions of a Plugin and of its canary.
    plugin_reason {
        /// The newest build reconciles. The message names who signed it.
        LOADED = "Loaded", "Loaded=True";
        /// The build is being pulled, compiled or checked.
        LOADING = "Loading", "Loaded=Unknown";
        /// The spec is invalid: the API server's validation cannot find everything.
        INVALID_SPEC = "InvalidSpec", "Loaded=False";
        /// The file of `spec.source.file` is not in the plugin directory.
        FILE_NOT_FOUND = "FileNotFound", "Loaded=False";
        /// The reference has no digest.
        DIGEST_REQUIRED = "DigestRequired", "Loaded=False";
        /// The registry does not respond as it should. The pull is retried with a backoff.
        PULL_FAILED = "PullFailed", "Loaded=False";
        /// The registry has no such artifact. The pull is retried with a backoff.
        NOT_FOUND = "NotFound", "Loaded=False";
        /// The registry denies access. The pull is retried with a backoff.
        UNAUTHORIZED = "Unauthorized", "Loaded=False";
        /// The Secret of `pullSecretRef` is missing or is not of type `kubernetes.io/dockerconfigjson`.
        INVALID_PULL_SECRET = "InvalidPullSecret", "Loaded=False";
        /// The registry returned content with another digest.
        DIGEST_MISMATCH = "DigestMismatch", "Loaded=False";
        /// The component or one of its manifests exceeds the size limit.
        TOO_LARGE = "TooLarge", "Loaded=False";
        /// A key of `spec.verify` is missing or is not a public key in PEM format.
        INVALID_KEY = "InvalidKey", "Loaded=False";
        /// The component has no signature. It is looked up again with a backoff.
        SIGNATURE_MISSING = "SignatureMissing", "Loaded=False";
        /// No signature of the component fits `spec.verify`, or the trusted keys of the host's grants file. It is looked up
        /// again with a backoff. A build that served is stopped if it does not fit either.
        INVALID_SIGNATURE = "InvalidSignature", "Loaded=False";
        /// The digest of the component is revoked by the host's grants file. A build that served is stopped: its objects wait.
        REVOKED = "Revoked", "Loaded=False";
        /// The host's grants file allows no components from files.
        FILE_NOT_ALLOWED = "FileNotAllowed", "Loaded=False";
        /// The content is not a WebAssembly component.
        NOT_A_COMPONENT = "NotAComponent", "Loaded=False";
        /// The component was built for another version of the contract, or exports what this host does not serve. The
        /// message names the function, field or type.
        INCOMPATIBLE_CONTRACT = "IncompatibleContract", "Loaded=False";
        /// The component has no manifest, which a Plugin requires.
        MANIFEST_MISSING = "ManifestMissing", "Loaded=False";
        /// The manifest in the component is invalid. The message names the field.
        INVALID_MANIFEST = "InvalidManifest", "Loaded=False";
        /// The component does not compile to machine code.
        COMPILE_FAILED = "CompileFailed", "Loaded=False";
        /// The component's `describe` failed.
        DESCRIBE_FAILED = "DescribeFailed", "Loaded=False";
        /// What `describe` returned is invalid.
        INVALID_DESCRIPTOR = "InvalidDescriptor", "Loaded=False";
        /// `spec.config` does not match the schema in the manifest. The message names the fields.
        INVALID_CONFIG = "InvalidConfig", "Loaded=False";
        /// The plugin reconciles a kind that `reconciles` does not both request and grant. The message names it.
        KINDS_NOT_GRANTED = "KindsNotGranted", "Loaded=False";
        /// The plugin reconciles Secrets, and `readSecrets` is not both requested and granted.
        SECRETS_NOT_GRANTED = "SecretsNotGranted", "Loaded=False";
        /// The grants name no `serviceAccount`, and the host runs with `--require-service-account`.
        SERVICE_ACCOUNT_REQUIRED = "ServiceAccountRequired", "Loaded=False";
        /// The component declares another name than that of the Plugin, or of its file.
        NAME_MISMATCH = "NameMismatch", "Loaded=False";
        /// Another plugin with this name reconciles.
        NAME_CONFLICT = "NameConflict", "Loaded=False";
        /// Another plugin reconciles a kind of this one.
        KIND_CONFLICT = "KindConflict", "Loaded=False";
        /// A file in the plugin directory is not loaded: a Plugin of the same name exists and names another source.
        MANAGED_BY_PLUGIN_OBJECT = "ManagedByPluginObject", "no object: a file";
        /// The build trapped when it replayed recordings of the previous one.
        PREFLIGHT_FAILED = "PreflightFailed", "Loaded=False";
        /// Every permission that the manifest requests is granted.
        ALL_GRANTED = "AllGranted", "Granted=True";
        /// The message lists the permissions that are requested and not granted.
        GRANTS_MISSING = "GrantsMissing", "Granted=False";
        /// The build reconciles without traps.
        SERVING = "Serving", "Healthy=True";
        /// No build is loaded.
        NOT_LOADED = "NotLoaded", "Healthy=Unknown";
        /// `spec.suspend` is set: the objects wait.
        SUSPENDED = "Suspended", "Healthy=Unknown";
        /// The life-cycle hook `initialize` runs, and the objects wait.
        HOOKS_PENDING = "HooksPending", "Healthy=Unknown";
        /// The Cluster of `spec.cluster` does not exist: the objects wait.
        CLUSTER_NOT_FOUND = "ClusterNotFound", "Healthy=Unknown";
        /// The host has no working connection to the Cluster of `spec.cluster`: the objects wait. The message has the cause.
        CLUSTER_NOT_READY = "ClusterNotReady", "Healthy=Unknown";
        /// The life-cycle hook `initialize` failed and is retried with a backoff; the objects wait.
        HOOKS_FAILED = "HooksFailed", "Healthy=False";
        /// Objects trapped at their last reconcile. The message has their number and a trap.
        TRAPPING = "Trapping", "Healthy=False";
        /// The newest build did worse than the previous one, which reconciles again. With Loaded=False, another process has
        /// rolled it back, and this one has no previous build.
        ROLLED_BACK = "RolledBack", "Healthy=False, Loaded=False";
        /// The canary is being loaded.
        CANARY_LOADING = "CanaryLoading", "Ready=False";
        /// The canary was refused; `status.canary.message` has the reason.
        CANARY_REFUSED = "CanaryRefused", "Ready=False";
        /// The canary did worse than the primary build, which reconciles all objects again.
        CANARY_ROLLED_BACK = "CanaryRolledBack", "Ready=False";
        /// The canary differs from the primary build in kinds, finalizers or selectors, or one of them has life-cycle
        /// hooks.
        INCOMPATIBLE_CANARY = "IncompatibleCanary", "`status.canary.message`";
        /// The canary waits for the primary build, which is not loaded.
        PRIMARY_NOT_LOADED = "PrimaryNotLoaded", "`status.canary.message`";
        /// Objects with finalizers of the plugin remain: the Plugin is being deleted, or a former build has reconciled their kind and
        /// this one does not. The message names some.
        OBJECTS_REMAIN = "ObjectsRemain", "Ready=False, Healthy=False";
    }

    /// Reasons of the conditions of an Upstream or a Cluster.
    upstream_reason {
        /// The service was reached.
        CONNECTED = "Connected", "Connected=True";
        /// No request was sent yet.
        NOT_CHECKED = "NotChecked", "any condition Unknown";
        /// The connection could not be established, or broke.
        CONNECTION_FAILED = "ConnectionFailed", "Connected=False";
        /// The TLS handshake failed: a certificate is not trusted, has expired, or is for another name.
        TLS_HANDSHAKE_FAILED = "TLSHandshakeFailed", "Connected=False";
        /// The address of the service is neither public nor allowed by the grants or `--allow-network`.
        ADDRESS_NOT_ALLOWED = "AddressNotAllowed", "Connected=False";
        /// Requests failed in succession: the circuit breaker sends none for a moment.
        CIRCUIT_OPEN = "CircuitOpen", "Connected=False";
        /// The spec is invalid: the API server's validation cannot find everything.
        INVALID_SPEC = "InvalidSpec", "Connected=False";
        /// A request with the credentials succeeded.
        ACCEPTED = "Accepted", "Authenticated=True";
        /// A login returned a token.
        LOGGED_IN = "LoggedIn", "Authenticated=True";
        /// The Upstream is used without credentials.
        NO_CREDENTIALS = "NoCredentials", "Authenticated=True";
        /// The service rejects the credentials (HTTP 401), or the login was refused.
        AUTHENTICATION_FAILED = "AuthenticationFailed", "Authenticated=False";
        /// The login got no answer, or an error that does not concern the credentials.
        LOGIN_FAILED = "LoginFailed", "Authenticated=False";
        /// A Secret or a key that the spec refers to does not exist.
        SECRET_NOT_FOUND = "SecretNotFound", "Authenticated=False";
        /// The annotation `ostler.dev/origins` of a Secret does not list the origin that the spec would send it to.
        ORIGIN_NOT_ALLOWED = "OriginNotAllowed", "Authenticated=False";
    }

    /// Reasons of the Events that the host records. A component records Events with reasons of its own.
    event_reason {
        /// The finalizer was removed without cleanup, because of `ostler.dev/force-delete`.
        FORCE_DELETED = "ForceDeleted", "Warning";
        /// The finalizer was removed without cleanup, or owned objects on another cluster were let go, because of
        /// `ostler.dev/deletion-policy` on the object or the Cluster.
        ORPHANED = "Orphaned", "Normal";
        /// The fields of the object are nested too deeply to be read. It is neither reconciled nor cleaned up.
        NESTED_TOO_DEEPLY = "NestedTooDeeply", "Warning";
        /// The deletion waits: another object holds this one, whose kind no plugin reconciles, or this is an Upstream, a
        /// Cluster or its Secret, which other objects need for their cleanup.
        DELETION_BLOCKED = "DeletionBlocked", "Warning";
    }

    /// Reasons of the host's own errors about an object, which `ostler status` and `ostler explain` show.
    error_reason {
        /// The host panicked: a bug in Ostler. The reconcile is retried with a backoff.
        RECONCILE_PANICKED = "ReconcilePanicked";
        /// The host had no memory or instance left for the call. It is retried with a backoff.
        HOST_EXHAUSTED = "HostExhausted";
        /// The finalizers could not be written.
        FINALIZER_UPDATE_FAILED = "FinalizerUpdateFailed";
        /// The finalizer that protects an Upstream, a Cluster or its Secret could not be written. The host works without it.
        PROTECTION_FAILED = "ProtectionFailed";
        /// The objects that need an Upstream or a Cluster for their cleanup could not be listed. Its deletion is retried.
        USERS_UNKNOWN = "UsersUnknown";
        /// The status could not be written.
        STATUS_UPDATE_FAILED = "StatusUpdateFailed";
        /// The API server did not answer whether the plugin's service account may read the object.
        ACCESS_REVIEW_FAILED = "AccessReviewFailed";
    }

    /// Environment variables.
    environment {
        /// URL of the host's admin server, for the commands that query a host. The flag `--admin` takes precedence.
        OSTLER_ADMIN = "OSTLER_ADMIN";
        /// Shell whose completions are printed. The scripts of `ostler completion` set it.
        OSTLER_COMPLETE = "OSTLER_COMPLETE";
        /// Log filter in the form of `RUST_LOG`, such as `info,ostler=debug,plugin=trace`. Defaults to `info`.
        OSTLER_LOG = "OSTLER_LOG";
        /// Directory of the SDK or of an Ostler checkout, for `ostler plugin new`.
        OSTLER_SDK = "OSTLER_SDK";
        /// Kubeconfig of the cluster.
        KUBECONFIG = "KUBECONFIG";
        /// Directory of Docker's `config.json`, whose credentials `ostler plugin push`, `install` and `verify` use for a registry.
        DOCKER_CONFIG = "DOCKER_CONFIG";
        /// Proxy to the API server, unless the kubeconfig names one; also `https_proxy`. OCI registries and the OTLP receiver
        /// are reached through it, too, and upstreams are not.
        HTTPS_PROXY = "HTTPS_PROXY";
        /// Hosts, domains and networks that are reached without a proxy; also `no_proxy`.
        NO_PROXY = "NO_PROXY";
        /// Any value turns colors off.
        NO_COLOR = "NO_COLOR";
        /// Endpoint of an OTLP receiver (HTTP, protobuf). Turns traces on.
        OTEL_EXPORTER_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT";
        /// Endpoint of an OTLP receiver of traces only. The other variables of OpenTelemetry (headers, sampling, batching)
        /// apply, too.
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        /// Name of the service in traces. Defaults to `ostler`.
        OTEL_SERVICE_NAME = "OTEL_SERVICE_NAME";
    }
}
