package ostler

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"ostler.dev/sdk/wit"
)

// platformCluster is the host's own cluster, with the configuration, the requests and the Cluster objects.
const platformCluster = "in-cluster"

const (
	requestAPIVersion = "clusters.openmcp.cloud/v1alpha1"
	clusterAPIVersion = "ostler.dev/v1alpha1"

	// kubeconfigKey is the key of the kubeconfig in a Secret with credentials.
	kubeconfigKey = "kubeconfig"
	// ownerAnnotation is the annotation of a request with the kind, namespace and name of its owner. An owner that was restored
	// from a backup has another uid, and takes its requests over.
	ownerAnnotation = "provision.ostler.dev/owner-name"
	// inventoryAnnotation is the annotation of an owner with the inventory of the host.
	inventoryAnnotation = "ostler.dev/owned-objects"
)

// Permissions are what an AccessRequest asks for: a Role in the namespace, or a ClusterRole without one.
type Permissions struct {
	Namespace string       `json:"namespace,omitempty"`
	Rules     []PolicyRule `json:"rules"`
}

// PolicyRule is a rule of a role. The core group is the empty string; resources are in the plural.
type PolicyRule struct {
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`
	Verbs     []string `json:"verbs"`
}

// RequestRef is a reference to a ClusterRequest.
type RequestRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// RequestOfSameName returns the reference to the ClusterRequest with the name and namespace of an object.
func RequestOfSameName(metadata Metadata) RequestRef {
	return RequestRef{metadata.Name, metadata.Namespace}
}

// TargetCluster is a cluster to which access is granted.
type TargetCluster struct {
	// Name is `namespace/name` of the Cluster object, for references, lists and writes.
	Name string
	// Secret is the Secret with the kubeconfig, to name it in another object. A plugin cannot read it.
	Secret wit.SecretKeyRef
}

// Clusters are the clusters of a service.
type Clusters struct{ mcp, workload *TargetCluster }

// MCP returns the control plane of the service. The error is terminal if the provider requests none.
func (c Clusters) MCP() (TargetCluster, error) { return findRequested(c.mcp, "MCPCluster") }

// Workload returns the workload cluster of the service. The error is terminal if the provider requests none.
func (c Clusters) Workload() (TargetCluster, error) {
	return findRequested(c.workload, "WorkloadCluster")
}

func findRequested(cluster *TargetCluster, field string) (TargetCluster, error) {
	if cluster == nil {
		return TargetCluster{}, Terminal("ClusterNotRequested", "The provider requests no such cluster: set "+field+".")
	}
	return *cluster, nil
}

// ProviderConfig is the spec of a provider's configuration: a cluster-scoped object with the name of the provider.
type ProviderConfig interface {
	// PollInterval returns the interval in Go's syntax (`1m`) at which each object is reconciled besides its changes, and those
	// of what it reads. It is empty for no interval: drift of what is read is a change.
	PollInterval() string
}

// MCPCluster is access to a control plane, for whose cluster another controller has made the ClusterRequest.
type MCPCluster struct {
	Permissions []Permissions
	// Find names the ClusterRequest. Without it, it is that of the same name.
	Find func(metadata Metadata) RequestRef
}

// WorkloadCluster is a cluster of the service's own, and access to it.
type WorkloadCluster struct{ Permissions []Permissions }

// ServiceStage is a stage of a service.
type ServiceStage string

const (
	// ServiceInstalled is the stage from before the first write on a cluster: it may be installed, at least in part.
	ServiceInstalled ServiceStage = "Installed"
	// ServiceRemoved is the stage when nothing is left there, and the clusters may be released.
	ServiceRemoved ServiceStage = "Removed"
)

// ProviderStatus is the state of a service that a cleanup needs: the field `provider` of the kind's status, which
// [ServiceProvider] maintains.
type ProviderStatus struct {
	Stage ServiceStage `json:"stage,omitempty"`
	// ProviderName is the name of the provider at the first request.
	ProviderName string `json:"providerName,omitempty"`
	// RequestNamespace is the namespace of the requests and of the Cluster objects.
	RequestNamespace string `json:"requestNamespace,omitempty"`
}

// ServiceProvider is a [Kind] whose service is installed on other clusters for each of its objects, with the cluster requests
// of openmcp (`clusters.openmcp.cloud`). It makes the requests, waits for them, and releases them when the service is gone.
//
// The requests and Cluster objects are in the namespace `requestNamespace` of the plugin's configuration, or else in that of
// the object, which keeps the namespace that it began with. They and the configuration are on the host's own cluster.
//
// Both functions are level-triggered, and may find any state that an interrupted call has left.
type ServiceProvider[Spec any, Config ProviderConfig] struct {
	// Name of the provider, and of its configuration object, of at most 21 characters. `providerName` in the configuration of
	// the plugin replaces it.
	Name string
	// The kind that stands for the service, which is namespaced. Its status has the fields `phase` and `provider`.
	APIVersion, Kind string
	// Finalizer (`domain/name`) of the kind.
	Finalizer string
	// The kind of the configuration, which is cluster-scoped.
	ConfigAPIVersion, ConfigKind string
	// MCPCluster requests access to a control plane, nil requests none.
	MCPCluster *MCPCluster
	// WorkloadCluster requests a workload cluster, nil requests none.
	WorkloadCluster *WorkloadCluster
	// CreateOrUpdate installs or updates the service; [Wait] while the installation takes its time. The clusters are granted.
	CreateOrUpdate func(object *Object[Spec], config *Config, clusters Clusters) (*Outcome, error)
	// Delete removes the service, and returns nil when nothing is left of it; [Wait] while the removal takes its time. It is
	// called for each service whose installation has begun, also without a configuration (nil): an administrator may have
	// deleted that first.
	Delete func(object *Object[Spec], config *Config, clusters Clusters) error
}

func (p ServiceProvider[Spec, Config]) build() Reconciler[Spec] {
	reconcile := func(object *Object[Spec]) (*Outcome, error) {
		return newService(p, object).run(service[Spec, Config].install)
	}
	cleanup := func(object *Object[Spec]) (*Outcome, error) {
		return newService(p, object).run(service[Spec, Config].uninstall)
	}
	return Reconciler[Spec]{
		APIVersion: p.APIVersion, Kind: p.Kind, Finalizer: p.Finalizer, Phase: true, Reconcile: reconcile, Cleanup: cleanup,
	}
}

func (p ServiceProvider[Spec, Config]) describe() wit.ReconcilerReconciledKind {
	return p.build().describe()
}

func (p ServiceProvider[Spec, Config]) run(object []byte, cleanup bool) (*Outcome, error) {
	return p.build().run(object, cleanup)
}

// service is the service of an object, with the field `provider` of its status.
type service[Spec any, Config ProviderConfig] struct {
	provider ServiceProvider[Spec, Config]
	object   *Object[Spec]
	state    *ProviderStatus
}

func newService[Spec any, Config ProviderConfig](
	provider ServiceProvider[Spec, Config], object *Object[Spec],
) service[Spec, Config] {
	var status struct{ Provider ProviderStatus }
	// A status that is none of the provider's says nothing, like an empty one.
	_ = json.Unmarshal(object.Status, &status)
	return service[Spec, Config]{provider, object, &status.Provider}
}

func (s service[Spec, Config]) run(step func(service[Spec, Config]) (*Outcome, error)) (*Outcome, error) {
	outcome, err := step(s)
	if err == nil {
		if outcome != nil {
			s.keepState(&outcome.outcome.Status)
		}
		return outcome, nil
	}
	// A copy, because the plugin may keep and return the same failure again.
	failed := *toFailure(err)
	s.keepState(&failed.failure.Status)
	return nil, &failed
}

// keepState adds the state to the status fields of the domain, which replace those before. Without any, all fields stay.
func (s service[Spec, Config]) keepState(status **[]byte) {
	var fields map[string]json.RawMessage
	if *status == nil || json.Unmarshal(**status, &fields) != nil || fields == nil {
		return
	}
	fields["provider"] = encode(s.state)
	bytes := encode(fields)
	*status = &bytes
}

func (s service[Spec, Config]) checkpoint() error {
	return Checkpoint(map[string]any{"provider": s.state})
}

func (s service[Spec, Config]) readSettings() (name, namespace string) {
	var config struct {
		ProviderName     *string `json:"providerName"`
		RequestNamespace *string `json:"requestNamespace"`
	}
	// The schema of the plugin's configuration decides about other values.
	_ = readPluginConfig(&config)
	name, namespace = s.provider.Name, s.object.Metadata.Namespace
	if config.ProviderName != nil {
		name = *config.ProviderName
	}
	if config.RequestNamespace != nil {
		namespace = *config.RequestNamespace
	}
	return name, namespace
}

func (s service[Spec, Config]) readConfig(name string) (*Config, error) {
	ref := OnCluster(Ref(s.provider.ConfigAPIVersion, s.provider.ConfigKind, "", name), platformCluster)
	var config Object[Config]
	exists, err := Get(ref, &config)
	if err != nil || !exists {
		return nil, err
	}
	return &config.Spec, nil
}

// readConfigForDeletion reads the configuration for a deletion. One that is missing, invalid or not permitted does not block
// it; an outage does.
func (s service[Spec, Config]) readConfigForDeletion(name string) (*Config, error) {
	config, err := s.readConfig(name)
	var host *HostError
	if errors.As(err, &host) {
		switch host.Cause.Case {
		case wit.ErrorUnavailable, wit.ErrorThrottled, wit.ErrorLimitExceeded, wit.ErrorConflict, wit.ErrorNotReady:
			return nil, err
		}
	}
	if err != nil {
		return nil, nil
	}
	return config, nil
}

func (s service[Spec, Config]) install() (*Outcome, error) {
	name, namespace := s.readSettings()
	config, err := s.readConfig(name)
	var host *HostError
	switch {
	case errors.As(err, &host):
		return nil, err
	case err != nil:
		return nil, Terminal("InvalidConfig", s.provider.ConfigKind+" "+name+": "+err.Error())
	case config == nil:
		return nil, Wait("ConfigNotFound",
			s.provider.ConfigKind+" "+name+" does not exist. Create it to configure the provider.")
	}
	interval, valid := parseInterval((*config).PollInterval())
	if !valid {
		return nil, Terminal("InvalidConfig", s.provider.ConfigKind+" "+name+": the poll interval "+
			(*config).PollInterval()+" is not a duration. Write it as 1m.")
	}
	// Before the first request, so that the cleanup finds it, whatever the configuration is then.
	if s.state.RequestNamespace == "" {
		s.state.ProviderName, s.state.RequestNamespace = name, namespace
		if err := s.checkpoint(); err != nil {
			return nil, err
		}
	}
	clusters, err := s.requestClusters()
	if err != nil {
		return nil, err
	}
	// Before the first write on a cluster: what may have been installed is removed, and nothing else is waited for.
	if s.state.Stage != ServiceInstalled {
		s.state.Stage = ServiceInstalled
		if err := s.checkpoint(); err != nil {
			return nil, err
		}
	}
	outcome, err := s.provider.CreateOrUpdate(s.object, config, clusters)
	if err == nil && outcome != nil && interval > 0 && outcome.outcome.Next.Case == wit.ReconcilerNextAwaitChange {
		outcome.outcome.Next = Poll(interval).outcome.Next
	}
	return outcome, err
}

func (s service[Spec, Config]) uninstall() (*Outcome, error) {
	// Nothing was requested.
	if s.state.RequestNamespace == "" {
		return AwaitChange(), nil
	}
	if s.state.Stage == ServiceInstalled {
		if err := s.delete(); err != nil {
			return nil, err
		}
		// Before the access is revoked: a request that is missing from now on is not made again.
		s.state.Stage = ServiceRemoved
		if err := s.checkpoint(); err != nil {
			return nil, err
		}
	}
	// Of both roles, also one that an earlier version of the plugin has requested.
	if err := mergeErrors(s.role(mcpRole).releaseAccess(), s.role(workloadRole).releaseAccess()); err != nil {
		return nil, err
	}
	return AwaitChange(), nil
}

func (s service[Spec, Config]) delete() error {
	name, _ := s.readSettings()
	config, err := s.readConfigForDeletion(name)
	if err != nil {
		return err
	}
	clusters, err := s.requestClusters()
	if err != nil {
		return err
	}
	if err := s.provider.Delete(s.object, config, clusters); err != nil {
		return err
	}
	// With the credentials the host could not do so any more.
	return releaseOwned(s.object.Metadata)
}

func (s service[Spec, Config]) role(role string) clusterRole {
	group, _, _ := strings.Cut(s.provider.APIVersion, "/")
	owner := s.object.Metadata
	ownerName := fmt.Sprintf("%s.%s %s/%s", s.provider.Kind, group, owner.Namespace, owner.Name)
	return clusterRole{owner, ownerName, s.state.ProviderName, s.state.RequestNamespace, role}
}

// requestClusters requests the clusters. None waits for the other.
func (s service[Spec, Config]) requestClusters() (clusters Clusters, err error) {
	var mcpErr, workloadErr error
	if mcp := s.provider.MCPCluster; mcp != nil {
		find := mcp.Find
		if find == nil {
			find = RequestOfSameName
		}
		clusters.mcp, mcpErr = s.role(mcpRole).requestAccess(find(s.object.Metadata), mcp.Permissions)
	}
	if workload := s.provider.WorkloadCluster; workload != nil {
		clusters.workload, workloadErr = s.role(workloadRole).requestCluster(workload.Permissions)
	}
	return clusters, mergeErrors(mcpErr, workloadErr)
}

// readPluginConfig parses the configuration of the plugin. A type parameter hides [Config] in the methods of a service.
func readPluginConfig(into any) error { return Config(into) }

// mergeErrors returns two errors as one, each of which may be nil.
func mergeErrors(first, second error) error {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	default:
		return mergeFailures(toFailure(first), toFailure(second))
	}
}

const (
	// mcpRole is the role of the cluster of a control plane.
	mcpRole = "mcp"
	// workloadRole is the role of a workload cluster, which is also the purpose of its request.
	workloadRole = "workload"
)

// clusterRole is a cluster in its role for an object.
type clusterRole struct {
	owner                                Metadata
	ownerName, provider, namespace, role string
}

// requestName is the name of the requests: the same for an object that was restored from a backup.
func (r clusterRole) requestName() string {
	return r.provider + "-" + r.role + "-" + hashText(r.ownerName)
}

// clusterName is the name of the Cluster, with the uid: one of an earlier object of the same name may still be there.
func (r clusterRole) clusterName(uid string) string {
	return r.provider + "-" + r.role + "-" + hashText(r.ownerName+" "+uid)
}

func (r clusterRole) find(apiVersion, kind, name string) ObjectRef {
	return OnCluster(Ref(apiVersion, kind, r.namespace, name), platformCluster)
}

// ownedRequest is the part of a request or Cluster that the module reads.
type ownedRequest struct {
	Metadata struct {
		UID               string            `json:"uid"`
		Generation        int64             `json:"generation"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
		DeletionTimestamp string            `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		Phase              string `json:"phase"`
		Message            string `json:"message"`
		ObservedGeneration int64  `json:"observedGeneration"`
		SecretRef          struct {
			Name      string  `json:"name"`
			Namespace *string `json:"namespace"`
		} `json:"secretRef"`
	} `json:"status"`
}

// requestCluster requests a cluster, and access to it.
func (r clusterRole) requestCluster(permissions []Permissions) (*TargetCluster, error) {
	ref := r.find(requestAPIVersion, "ClusterRequest", r.requestName())
	if _, err := r.applyRequest(ref, map[string]any{"purpose": r.role}); err != nil {
		return nil, err
	}
	return r.requestAccess(RequestRef{r.requestName(), r.namespace}, permissions)
}

// requestAccess requests access to the cluster of a ClusterRequest, and makes the Cluster object for it.
func (r clusterRole) requestAccess(request RequestRef, permissions []Permissions) (*TargetCluster, error) {
	spec := map[string]any{"requestRef": request, "token": map[string]any{"permissions": permissions}}
	granted, err := r.applyRequest(r.find(requestAPIVersion, "AccessRequest", r.requestName()), spec)
	if err != nil {
		return nil, err
	}
	secret := granted.Status.SecretRef
	if secret.Name == "" {
		return nil, Wait("AccessRequestPending", "AccessRequest "+r.requestName()+" has no status.secretRef yet.")
	}
	// Earlier versions of openmcp-operator write the namespace, too.
	if secret.Namespace != nil && *secret.Namespace != r.namespace {
		return nil, Terminal("SecretInOtherNamespace", "AccessRequest "+r.requestName()+
			": status.secretRef is in another namespace, where no Cluster can name it.")
	}
	name := r.clusterName(r.owner.UID)
	if err := r.applyCluster(name, secret.Name); err != nil {
		return nil, err
	}
	credentials := wit.SecretKeyRef{Namespace: some(r.namespace), Name: secret.Name, Key: kubeconfigKey}
	return &TargetCluster{Name: r.namespace + "/" + name, Secret: credentials}, nil
}

// applyRequest applies a request, and returns it when it is granted.
func (r clusterRole) applyRequest(ref ObjectRef, spec any) (*ownedRequest, error) {
	live, err := r.findOwn(ref)
	if err != nil {
		return nil, err
	}
	if live != nil && live.Metadata.DeletionTimestamp != "" {
		// Another client deletes it. A cleanup uses the access as long as there is one.
		if r.owner.DeletionTimestamp != "" {
			return checkGranted(ref, live)
		}
		return nil, Wait("Deprovisioning", describeRequest(ref, " is being deleted, and is made anew after that."))
	}
	if live != nil {
		if err := r.deleteFormerCluster(live); err != nil {
			return nil, err
		}
	}
	var applied ownedRequest
	if err := r.apply(ref, spec, &applied); err != nil {
		return nil, err
	}
	return checkGranted(ref, &applied)
}

func (r clusterRole) applyCluster(name, secret string) error {
	ref := r.find(clusterAPIVersion, "Cluster", name)
	live, err := r.findOwn(ref)
	// One that is being deleted stays until its last user is gone, which is this object, and works until then.
	if err != nil || live != nil && live.Metadata.DeletionTimestamp != "" {
		return err
	}
	spec := map[string]any{"kubeconfigSecretRef": map[string]string{"name": secret, "key": kubeconfigKey}}
	if r.owner.Namespace != r.namespace {
		spec["allowedNamespaces"] = []string{r.owner.Namespace}
	}
	var applied ownedRequest
	return r.apply(ref, spec, &applied)
}

func (r clusterRole) apply(ref ObjectRef, spec any, into *ownedRequest) error {
	object := map[string]any{
		"apiVersion": ref.Gvk.Group + "/" + ref.Gvk.Version,
		"kind":       ref.Gvk.Kind,
		"metadata": map[string]any{
			"name":        ref.Name,
			"namespace":   r.namespace,
			"labels":      map[string]string{OwnerLabel: r.owner.UID},
			"annotations": map[string]string{ownerAnnotation: r.ownerName},
		},
		"spec": spec,
	}
	return ApplyInto(object, ApplyOptions{Cluster: ref.Cluster, Force: true}, into)
}

// releaseAccess deletes the Cluster, then the AccessRequest, and after that the ClusterRequest.
func (r clusterRole) releaseAccess() error {
	// The Cluster is not waited for: the host keeps it until this object is gone, which may need it for its cleanup.
	if _, err := r.deleteOwn(r.find(clusterAPIVersion, "Cluster", r.clusterName(r.owner.UID))); err != nil {
		return err
	}
	for _, kind := range []string{"AccessRequest", "ClusterRequest"} {
		ref := r.find(requestAPIVersion, kind, r.requestName())
		gone, err := r.deleteOwn(ref)
		if err != nil {
			return err
		}
		if !gone {
			return Wait("Deprovisioning", describeRequest(ref, " is being deleted."))
		}
	}
	return nil
}

// deleteFormerCluster deletes the Cluster of the owner before it was restored from a backup, whose uid is in its name and on the
// request. It goes before the request gets the new uid, after which nothing would tell its name. The host keeps it for as long
// as the inventory of the owner has objects on it.
func (r clusterRole) deleteFormerCluster(request *ownedRequest) error {
	uid, labelled := request.Metadata.Labels[OwnerLabel]
	if !labelled || uid == r.owner.UID {
		return nil
	}
	_, err := r.deleteOwn(r.find(clusterAPIVersion, "Cluster", r.clusterName(uid)))
	return err
}

// deleteOwn deletes an object unless it belongs to another owner. It returns true if nothing is left of it.
func (r clusterRole) deleteOwn(ref ObjectRef) (bool, error) {
	var live ownedRequest
	exists, err := GetMetadata(ref, &live)
	if err != nil || !exists || !r.isOwn(&live) {
		return err == nil, err
	}
	if ref.Gvk.Kind != "Cluster" {
		if err := r.deleteFormerCluster(&live); err != nil {
			return false, err
		}
	}
	if live.Metadata.DeletionTimestamp != "" {
		return false, nil
	}
	// Not in the foreground: the AccessRequest would wait for the Secret that it owns, and the host keeps that until this object
	// is gone, which waits for the AccessRequest.
	preconditions := Preconditions{UID: live.Metadata.UID}
	if err := DeleteWith(ref, wit.KubernetesPropagationBackground, preconditions); err != nil {
		return false, err
	}
	exists, err = GetMetadata(ref, &live)
	return err == nil && !exists, err
}

func (r clusterRole) findOwn(ref ObjectRef) (*ownedRequest, error) {
	var live ownedRequest
	exists, err := Get(ref, &live)
	if err != nil || !exists {
		return nil, err
	}
	if !r.isOwn(&live) {
		return nil, Terminal("NotOwned",
			describeRequest(ref, " belongs to another owner. Delete it if that does not exist any more."))
	}
	return &live, nil
}

func (r clusterRole) isOwn(live *ownedRequest) bool {
	metadata := &live.Metadata
	return metadata.Labels[OwnerLabel] == r.owner.UID || metadata.Annotations[ownerAnnotation] == r.ownerName
}

// checkGranted returns a request that is granted in its current generation.
func checkGranted(ref ObjectRef, live *ownedRequest) (*ownedRequest, error) {
	status := &live.Status
	// A phase of an earlier generation says nothing about the current spec.
	current := status.ObservedGeneration >= live.Metadata.Generation
	switch {
	case current && status.Phase == "Granted":
		return live, nil
	case current && status.Phase == "Denied":
		return nil, Terminal(ref.Gvk.Kind+"Denied", describeRequest(ref, " is Denied. "+status.Message))
	default:
		return nil, Wait(ref.Gvk.Kind+"Pending", describeRequest(ref, " is not granted yet. "+status.Message))
	}
}

func describeRequest(ref ObjectRef, text string) string {
	return strings.TrimSpace(ref.Gvk.Kind + " " + *ref.Namespace + "/" + ref.Name + text)
}

// releaseOwned deletes the objects in the inventory that belong to the owner, and waits until they are gone: on all clusters,
// since an earlier version of the plugin may have requested another one.
func releaseOwned(owner Metadata) error {
	var left []string
	for _, ref := range listInventory(owner.Annotations[inventoryAnnotation]) {
		var live ownedRequest
		exists, err := GetMetadata(ref, &live)
		if err != nil {
			return err
		}
		if !exists {
			// The host removes the entry.
			if err := Delete(ref); err != nil {
				return err
			}
			continue
		}
		// Like the host: an entry alone deletes nothing.
		if live.Metadata.Labels[ownerUIDLabel] != owner.UID {
			continue
		}
		if live.Metadata.DeletionTimestamp == "" {
			preconditions := Preconditions{UID: live.Metadata.UID}
			if err := DeleteWith(ref, wit.KubernetesPropagationBackground, preconditions); err != nil {
				return err
			}
			if exists, err = GetMetadata(ref, &live); err != nil {
				return err
			}
			if !exists {
				continue
			}
		}
		left = append(left, ref.Gvk.Kind+"/"+ref.Name)
	}
	if len(left) == 0 {
		return nil
	}
	return Wait("OwnedObjectsRemain",
		"Being deleted before the access to the cluster is revoked: "+strings.Join(left, " "))
}

// listInventory reads the entries of an inventory, each as `Deployment.v1.apps fleet/east apps/web`.
func listInventory(text string) []ObjectRef {
	var refs []ObjectRef
	for _, entry := range strings.Split(text, ", ") {
		words := strings.Split(entry, " ")
		if len(words) != 3 {
			continue
		}
		parts := strings.SplitN(words[0], ".", 3)
		namespace, name, placed := strings.Cut(words[2], "/")
		if len(parts) < 2 || parts[0] == "" || !placed || name == "" {
			continue
		}
		apiVersion := parts[1]
		if len(parts) == 3 {
			apiVersion = parts[2] + "/" + parts[1]
		}
		refs = append(refs, OnCluster(Ref(apiVersion, parts[0], namespace, name), words[1]))
	}
	return refs
}

// parseInterval parses a poll interval. It returns milliseconds, 0 for an empty text, and false for one that is no duration.
func parseInterval(text string) (uint64, bool) {
	if text == "" {
		return 0, true
	}
	interval, err := time.ParseDuration(text)
	// A sign and a number without a unit are not in the syntax of the other SDKs.
	signed := text == "0" || strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+")
	return uint64(interval.Milliseconds()), err == nil && !signed
}

// BuildStableName returns a name that is stable and unique for an object of a kind, such as that of its namespace on a cluster
// that it shares with others: the prefix and a hash of the namespace and name.
func BuildStableName(prefix string, metadata Metadata) string {
	return prefix + "-" + hashText(metadata.Namespace+"/"+metadata.Name)
}

// hashText returns the first 128 bits of the SHA-256 hash in hexadecimal digits. Names of tenants stand beside each other, and
// nobody can choose a name of his own whose hash is that of another one.
func hashText(text string) string {
	hash := sha256.Sum256([]byte(text))
	return hex.EncodeToString(hash[:16])
}
