// The example that exists in four languages: copies a page of an upstream to a ConfigMap.
package main

import (
	"fmt"
	"strings"

	ostler "ostler.dev/sdk"
)

// Bookmark is the spec of the kind.
type Bookmark struct {
	Title    string `json:"title"`
	Upstream string `json:"upstream"`
	Path     string `json:"path"`
	Every    uint64 `json:"every"`
}

func reconcile(bookmark *ostler.Object[Bookmark]) (*ostler.Outcome, error) {
	spec := bookmark.Spec
	if !strings.HasPrefix(spec.Path, "/") {
		return nil, ostler.Terminal("InvalidPath", fmt.Sprintf("spec.path: %s does not start with /", spec.Path))
	}
	response, err := ostler.Upstream{Name: spec.Upstream}.Get(spec.Path)
	if err != nil {
		return nil, err
	}
	summary := fmt.Sprintf("GET %s was answered with %d", spec.Path, response.Status)
	if !response.OK() {
		return nil, ostler.Retry("UnexpectedAnswer", summary).With(ostler.FalseCondition("Reachable", "UnexpectedAnswer", summary))
	}
	err = ostler.ApplyOwned(map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]string{"name": bookmark.Metadata.Name, "namespace": bookmark.Metadata.Namespace},
		"data":       map[string]string{"title": spec.Title, "page": string(response.Body)},
	})
	if err != nil {
		return nil, err
	}
	return ostler.Poll(spec.Every * 1000).
		With(ostler.TrueCondition("Ready", "Kept", spec.Title+" is kept")).
		With(ostler.TrueCondition("Reachable", "Answered", summary)).
		Status(map[string]int{"httpStatus": response.Status, "bytes": len(response.Body)}), nil
}

func cleanup(bookmark *ostler.Object[Bookmark]) (*ostler.Outcome, error) {
	spec := bookmark.Spec
	if strings.HasPrefix(spec.Path, "/") {
		response, err := ostler.Upstream{Name: spec.Upstream}.Delete(spec.Path)
		if err != nil {
			return nil, err
		}
		if !response.OK() && response.Status != 404 {
			return nil, ostler.Retry("UnexpectedAnswer", fmt.Sprintf("DELETE %s was answered with %d", spec.Path, response.Status))
		}
	}
	ostler.Event("Forgotten", spec.Title+" is forgotten")
	return ostler.AwaitChange(), nil
}

func init() {
	ostler.Export("bookmark-go", "0.1.0", ostler.Reconciler[Bookmark]{
		APIVersion: "examples.ostler.dev/v1alpha1",
		Kind:       "Bookmark",
		Finalizer:  "examples.ostler.dev/bookmark",
		Reconcile:  reconcile,
		Cleanup:    cleanup,
	})
}

func main() {}
