// The bench's operator as an Ostler plugin: a Sample becomes a ConfigMap of its name.
package main

import ostler "ostler.dev/sdk"

// SampleSpec is the spec of the kind.
type SampleSpec struct {
	// Value that is copied into the ConfigMap.
	Text string `json:"text"`
	// Name of a ConfigMap whose value is copied into the ConfigMap, too.
	Config string `json:"config"`
}

func reconcile(sample *ostler.Object[SampleSpec]) (*ostler.Outcome, error) {
	metadata := sample.Metadata
	data := map[string]string{"text": sample.Spec.Text}
	if sample.Spec.Config != "" {
		var config struct {
			Data map[string]string `json:"data"`
		}
		found, err := ostler.Get(ostler.Ref("v1", "ConfigMap", metadata.Namespace, sample.Spec.Config), &config)
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, ostler.Wait("NoConfig", "The ConfigMap does not exist")
		}
		data["value"] = config.Data["value"]
	}
	err := ostler.ApplyOwned(map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]string{"name": metadata.Name, "namespace": metadata.Namespace},
		"data":       data,
	})
	if err != nil {
		return nil, err
	}
	return ostler.AwaitChange().With(ostler.TrueCondition("Ready", "Applied", "The ConfigMap is there")), nil
}

func init() {
	ostler.Export("bench-plugin", "0.1.0", ostler.Reconciler[SampleSpec]{
		APIVersion: "bench.ostler.dev/v1",
		Kind:       "Sample",
		Reconcile:  reconcile,
	})
}

func main() {}
