// The example of provisioning that exists in four languages: a text, and a Service if it is public.
package main

import ostler "ostler.dev/sdk"

const apiVersion = "examples.ostler.dev/v1alpha1"

// Site is the spec of the kind.
type Site struct {
	Text   string `json:"text"`
	Public bool   `json:"public"`
	After  string `json:"after"`
}

type fields = map[string]any

func steps(site *ostler.Object[Site]) ostler.StepTree {
	owner, spec := site.Metadata, site.Spec
	metadata := fields{"name": owner.Name, "namespace": owner.Namespace}
	configMap := fields{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": fields{"text": spec.Text}}
	service := fields{"apiVersion": "v1", "kind": "Service", "metadata": metadata,
		"spec": fields{"selector": fields{"app": owner.Name}, "ports": []fields{{"port": 80}}}}
	after := ostler.Dependency{
		Ref: ostler.Ref(apiVersion, "Site", owner.Namespace, spec.After), ReadyWhen: "Ready", Held: true,
	}
	return ostler.Serial(
		ostler.When(spec.After != "", ostler.Step("SiteReady", after)),
		ostler.Step("TextApplied", ostler.Resource{Owner: owner, Object: configMap}),
		ostler.When(spec.Public, ostler.Step("ServiceApplied", ostler.Resource{Owner: owner, Object: service})),
	)
}

func init() {
	ostler.Export("site-go", "0.1.0", ostler.Reconciler[Site]{
		APIVersion: apiVersion,
		Kind:       "Site",
		Finalizer:  "examples.ostler.dev/site",
		Reconcile:  func(site *ostler.Object[Site]) (*ostler.Outcome, error) { return steps(site).Provision() },
		Cleanup:    func(site *ostler.Object[Site]) (*ostler.Outcome, error) { return steps(site).Deprovision() },
	})
}

func main() {}
