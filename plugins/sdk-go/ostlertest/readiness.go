//go:build !wasip1

package ostlertest

import (
	"fmt"
	"slices"
)

// builtInGroups are the API groups of Kubernetes itself.
var builtInGroups = []string{
	"", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "authentication.k8s.io",
	"authorization.k8s.io", "autoscaling", "batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io",
	"events.k8s.io", "flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "networking.k8s.io", "node.k8s.io", "policy",
	"rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
}

func isBuiltIn(group string) bool { return slices.Contains(builtInGroups, group) }

// notReady is the cause for which an object is not ready.
type notReady struct{ reason, message string }

func ofCondition(condition Object) *notReady {
	return &notReady{text(condition["reason"]), text(condition["message"])}
}

func findCondition(object any, kind string) Object {
	conditions, _ := at(object, "status", "conditions").([]any)
	for _, condition := range conditions {
		if at(condition, "type") == kind {
			return condition.(Object)
		}
	}
	return nil
}

func findTrue(object any, kind string) Object {
	if condition := findCondition(object, kind); condition["status"] == "True" {
		return condition
	}
	return nil
}

func requireTrue(object any, kind string) *notReady {
	condition := findCondition(object, kind)
	switch {
	case condition == nil:
		return &notReady{"ConditionMissing", "it has no condition " + kind + " yet"}
	case condition["status"] == "True":
		return nil
	}
	return ofCondition(condition)
}

func requirePhase(object any, ready ...string) *notReady {
	phase, ok := at(object, "status", "phase").(string)
	switch {
	case !ok:
		return &notReady{"PhaseMissing", "it has no phase yet"}
	case slices.Contains(ready, phase):
		return nil
	}
	return &notReady{phase, "its phase is " + phase}
}

// count is a requirement that a count in the status has reached another.
type count struct{ field, reason, done string }

func requireCounts(object any, desired int64, counts ...count) *notReady {
	for _, required := range counts {
		if required.field == "" {
			if excess := number(at(object, "status", "replicas")) - desired; excess > 0 {
				return &notReady{"PodsNotRemoved", fmt.Sprintf("%d old pods are not removed yet", excess)}
			}
			continue
		}
		if found := number(at(object, "status", required.field)); found < desired {
			return &notReady{required.reason, fmt.Sprintf("%d of %d pods are %s", found, desired, required.done)}
		}
	}
	return nil
}

// noExcess is the requirement that no more pods are left than there should be.
var noExcess = count{}

func desiredReplicas(object any) int64 {
	if replicas := at(object, "spec", "replicas"); replicas != nil {
		return number(replicas)
	}
	return 1
}

// checkReady returns the cause for which an object of a built-in kind is not ready for its current generation, or nil. The
// rules are those of the host.
func checkReady(group, kind string, object Object) *notReady {
	if at(object, "metadata", "deletionTimestamp") != nil {
		return &notReady{"Terminating", "it is being deleted"}
	}
	observed, generation := at(object, "status", "observedGeneration"), at(object, "metadata", "generation")
	hasController := group == "apps" && slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"}, kind) ||
		group == "policy" && kind == "PodDisruptionBudget"
	if observed != generation && (hasController || observed != nil) {
		return &notReady{"GenerationNotObserved", fmt.Sprintf("its controller has not observed generation %v yet", generation)}
	}
	switch group + "/" + kind {
	case "apps/Deployment":
		return checkDeployment(object)
	case "apps/StatefulSet":
		return checkStatefulSet(object)
	case "apps/DaemonSet":
		return checkDaemonSet(object)
	case "apps/ReplicaSet", "/ReplicationController":
		if failure := findTrue(object, "ReplicaFailure"); failure != nil {
			return ofCondition(failure)
		}
		return requireCounts(object, desiredReplicas(object), count{"fullyLabeledReplicas", "PodsNotCreated", "created"},
			count{"availableReplicas", "PodsNotAvailable", "available"}, count{"readyReplicas", "PodsNotReady", "ready"}, noExcess)
	case "batch/Job":
		return checkJob(object)
	case "/Pod":
		return checkPod(object)
	case "/Service":
		return checkService(object)
	case "/PersistentVolumeClaim":
		return requirePhase(object, "Bound")
	case "/PersistentVolume":
		return requirePhase(object, "Available", "Bound")
	case "/Namespace":
		return requirePhase(object, "Active")
	case "apiextensions.k8s.io/CustomResourceDefinition":
		if accepted := findCondition(object, "NamesAccepted"); accepted["status"] == "False" {
			return ofCondition(accepted)
		}
		return requireTrue(object, "Established")
	case "apiregistration.k8s.io/APIService":
		return requireTrue(object, "Available")
	case "certificates.k8s.io/CertificateSigningRequest":
		for _, refused := range []string{"Denied", "Failed"} {
			if condition := findTrue(object, refused); condition != nil {
				return ofCondition(condition)
			}
		}
		if text(at(object, "status", "certificate")) == "" {
			return &notReady{"CertificatePending", "its certificate is not issued yet"}
		}
		return nil
	}
	if group == "" && kind == "Node" || findCondition(object, "Ready") != nil {
		return requireTrue(object, "Ready")
	}
	return nil
}

func checkDeployment(object any) *notReady {
	if progressing := findCondition(object, "Progressing"); progressing["reason"] == "ProgressDeadlineExceeded" {
		return ofCondition(progressing)
	}
	if failure := findTrue(object, "ReplicaFailure"); failure != nil {
		return ofCondition(failure)
	}
	missing := requireCounts(object, desiredReplicas(object), count{"replicas", "PodsNotCreated", "created"},
		count{"updatedReplicas", "PodsNotUpdated", "updated"}, noExcess,
		count{"availableReplicas", "PodsNotAvailable", "available"}, count{"readyReplicas", "PodsNotReady", "ready"})
	if missing == nil && findCondition(object, "Available") != nil {
		return requireTrue(object, "Available")
	}
	return missing
}

func checkStatefulSet(object any) *notReady {
	// Its pods are updated when their administrator deletes them.
	if at(object, "spec", "updateStrategy", "type") == "OnDelete" {
		return nil
	}
	desired := desiredReplicas(object)
	missing := requireCounts(object, desired, count{"replicas", "PodsNotCreated", "created"},
		count{"readyReplicas", "PodsNotReady", "ready"}, noExcess)
	if missing != nil {
		return missing
	}
	if partition := number(at(object, "spec", "updateStrategy", "rollingUpdate", "partition")); partition > 0 {
		return requireCounts(object, max(0, desired-partition), count{"updatedReplicas", "PodsNotUpdated", "updated"})
	}
	if at(object, "status", "currentRevision") != at(object, "status", "updateRevision") {
		updated := number(at(object, "status", "updatedReplicas"))
		return &notReady{"PodsNotUpdated", fmt.Sprintf("%d of %d pods are updated", updated, desired)}
	}
	return nil
}

func checkDaemonSet(object any) *notReady {
	scheduled := at(object, "status", "desiredNumberScheduled")
	if scheduled == nil {
		return &notReady{"PodsNotScheduled", "its pods are not counted yet"}
	}
	counts := []count{{"currentNumberScheduled", "PodsNotScheduled", "scheduled"}}
	if at(object, "spec", "updateStrategy", "type") != "OnDelete" {
		counts = append(counts, count{"updatedNumberScheduled", "PodsNotUpdated", "updated"})
	}
	counts = append(counts, count{"numberAvailable", "PodsNotAvailable", "available"}, count{"numberReady", "PodsNotReady", "ready"})
	return requireCounts(object, number(scheduled), counts...)
}

func checkJob(object any) *notReady {
	if failed := findTrue(object, "Failed"); failed != nil {
		return ofCondition(failed)
	}
	if findTrue(object, "Complete") != nil {
		return nil
	}
	if suspended := findTrue(object, "Suspended"); suspended != nil {
		return ofCondition(suspended)
	}
	of := func(field string) int64 { return number(at(object, "status", field)) }
	return &notReady{"JobNotComplete", fmt.Sprintf("it is not complete: %d pods active, %d succeeded, %d failed",
		of("active"), of("succeeded"), of("failed"))}
}

// checkPod checks a pod. One that has succeeded is ready.
func checkPod(object any) *notReady {
	phase := text(at(object, "status", "phase"))
	if phase == "Succeeded" {
		return nil
	}
	for _, field := range []string{"initContainerStatuses", "containerStatuses"} {
		containers, _ := at(object, "status", field).([]any)
		for _, container := range containers {
			reason, isWaiting := at(container, "state", "waiting", "reason").(string)
			if !isWaiting || reason == "ContainerCreating" || reason == "PodInitializing" {
				continue
			}
			message := "it waits"
			if found := text(at(container, "state", "waiting", "message")); found != "" {
				message = found
			}
			return &notReady{reason, "container " + text(at(container, "name")) + ": " + message}
		}
	}
	if phase == "Failed" {
		failed := &notReady{"Failed", "its phase is Failed"}
		if reason := text(at(object, "status", "reason")); reason != "" {
			failed.reason = reason
		}
		if message := text(at(object, "status", "message")); message != "" {
			failed.message = message
		}
		return failed
	}
	if scheduled := findCondition(object, "PodScheduled"); scheduled["status"] == "False" {
		return ofCondition(scheduled)
	}
	return requireTrue(object, "Ready")
}

func checkService(object any) *notReady {
	addresses, _ := at(object, "spec", "externalIPs").([]any)
	ingress, _ := at(object, "status", "loadBalancer", "ingress").([]any)
	if at(object, "spec", "type") != "LoadBalancer" || len(addresses)+len(ingress) > 0 {
		return nil
	}
	return &notReady{"AddressPending", "its load balancer has no address yet"}
}
