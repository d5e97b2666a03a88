package lifecycle_test

import (
	"testing"

	ostler "ostler.dev/sdk"
	"ostler.dev/sdk/lifecycle"
	"ostler.dev/sdk/ostlertest"
)

func TestHooksPrepareThePluginAndUpgradeObjects(t *testing.T) {
	lifecycle.Export(lifecycle.Hooks{
		Initialize: func() error {
			return ostler.Apply(map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": "a", "namespace": "n"},
			}, false)
		},
		Upgrade: func(object map[string]any) (map[string]any, error) {
			spec := object["spec"].(map[string]any)
			if spec["old"] == true {
				return nil, ostler.Retry("Busy", "not now")
			}
			if spec["done"] == true {
				return nil, nil
			}
			object["metadata"].(map[string]any)["labels"] = map[string]string{"done": "yes"}
			return object, nil
		},
	})
	host := ostlertest.NewHost(t)
	if err := host.Initialize(); err != nil || len(host.Writes()) != 1 {
		t.Error(err, host.Writes())
	}
	upgraded, err := host.Upgrade(map[string]any{"spec": map[string]any{"big": int64(9007199254740993)}, "metadata": map[string]any{}})
	labels, _ := upgraded["metadata"].(map[string]any)["labels"].(map[string]any)
	if err != nil || labels["done"] != "yes" {
		t.Error(upgraded, err)
	}
	if big := upgraded["spec"].(map[string]any)["big"]; big.(interface{ String() string }).String() != "9007199254740993" {
		t.Error(big)
	}
	if upgraded, err := host.Upgrade(map[string]any{"spec": map[string]any{"done": true}}); upgraded != nil || err != nil {
		t.Error(upgraded, err)
	}
	if _, err := host.Upgrade(map[string]any{"spec": map[string]any{"old": true}}); err == nil || err.Error() != "not now" {
		t.Error(err)
	}
	host.Deny("kubernetes.apply")
	if err := host.Initialize(); err == nil {
		t.Error("it is denied")
	}
	lifecycle.Export(lifecycle.Hooks{})
	if err := host.Initialize(); err != nil {
		t.Error(err)
	}
}
