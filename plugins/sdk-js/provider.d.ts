/** Service providers: a kind whose service is installed on other clusters for each of its objects. */
import type { Host, Kind, KubernetesObject, Outcome, SecretKey } from "./index.js";

/** Permissions that an `AccessRequest` asks for: a Role in the namespace, or a ClusterRole without one. */
export interface Permissions {
  namespace?: string;
  rules: { apiGroups: string[]; resources: string[]; verbs: string[] }[];
}
/** A reference to a `ClusterRequest`. */
export interface RequestRef { name: string; namespace: string }
/** Returns the reference to the ClusterRequest with the name and namespace of an object. */
export function requestOfSameName(metadata: KubernetesObject["metadata"]): RequestRef;
/** A name that is stable and unique for an object of a kind, such as that of its namespace on a cluster that it shares with
 * others: the prefix and a hash of the namespace and name. */
export function buildStableName(prefix: string, metadata: KubernetesObject["metadata"]): string;
/** A cluster to which access is granted. */
export interface TargetCluster {
  /** `namespace/name` of the `Cluster` object, for references, lists and writes. */
  readonly name: string;
  /** The Secret with the kubeconfig, to name it in another object. A plugin cannot read it. */
  readonly secret: SecretKey;
}
/** The clusters of a service. To read one that the provider does not request is a terminal failure. */
export interface Clusters { readonly mcp: TargetCluster; readonly workload: TargetCluster }

export interface ServiceProvider {
  /** Name of the provider, and of its configuration object, of at most 21 characters. `providerName` in the configuration of
   * the plugin replaces it. */
  name: string;
  /** The kind that stands for the service, which is namespaced. Its status has the fields `phase` and `provider`. */
  group: string; version: string; kind: string;
  /** The finalizer (`domain/name`) of the kind. */
  finalizer: string;
  /** The kind of the configuration, which is cluster-scoped. `pollInterval` returns the interval in Go's syntax (`1m`) at which
   * each object is reconciled besides its changes, and those of what it reads; by default it is the spec's field
   * `pollInterval`. */
  config: { apiVersion: string; kind: string; pollInterval?(spec: any): string | undefined };
  /** Requests access to a control plane, for whose cluster another controller has made the `ClusterRequest` that `find` names:
   * by default the one of the same name. */
  mcpCluster?: { permissions: Permissions[]; find?(metadata: KubernetesObject["metadata"]): RequestRef };
  /** Requests a workload cluster, and access to it. */
  workloadCluster?: { permissions: Permissions[] };
  /** Installs or updates the service. `config` is the spec of the configuration. The clusters are granted. */
  createOrUpdate(object: KubernetesObject, config: any, clusters: Clusters, host: Host): Outcome;
  /** Removes the service, and returns when nothing is left of it. It is called for each service whose installation has begun,
   * also without a configuration (null): an administrator may have deleted that first. */
  delete(object: KubernetesObject, config: any | null, clusters: Clusters, host: Host): void;
}
/** Builds the kind of a service for `plugin`. The requests and `Cluster` objects are in the namespace `requestNamespace` of the
 * plugin's configuration, or else in that of the object, which keeps the namespace that it began with. They and the configuration
 * are on the host's own cluster. */
export function serviceProvider(provider: ServiceProvider): Kind;
