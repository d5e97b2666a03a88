package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const source = `package main

import (
	"encoding/json"
	"time"

	ostler "ostler.dev/sdk"
)

const apiVersion = "a.dev/v1"

// A thing,
// of two lines.
//
// +kubebuilder:resource:path=thingies,shortName=t;th,scope=Cluster
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=` + "`.status.conditions[?(@.type==\"Ready\")].status`" + `
// +kubebuilder:printcolumn:name="Host, long",JSONPath=.spec.hostName,priority=1
type ThingSpec struct {
	// Name of
	// the host.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=` + "`^[a-z]+$`" + `
	HostName string ` + "`json:\"hostName\"`" + `
	Ports []*Port ` + "`json:\"ports,omitempty\"`" + ` // Its ports.
	Mode Mode ` + "`json:\"mode,omitempty\"`" + `
	Labels map[string]string ` + "`json:\"labels,omitempty\"`" + `
	Raw json.RawMessage ` + "`json:\"raw,omitempty\"`" + `
	// +optional
	Until *time.Time ` + "`json:\"until\"`" + `
	Common
	hidden int ` + "`json:\"-\"`" + `
	MORE
}

// A port.
type Port struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=80
	Number int32 ` + "`json:\"number\"`" + `
}

// +kubebuilder:validation:Enum=on;off
type Mode string

type Common struct {
	Weight float64 ` + "`json:\"weight\"`" + `
}

type ThingStatus struct {
	URL string ` + "`json:\"url\"`" + `
}

func init() {
	ostler.Export("p", "1", ostler.Reconciler[ThingSpec]{APIVersion: apiVersion, Kind: "Thing"},
		ostler.Reconciler[map[string]any]{APIVersion: "a.dev/v1", Kind: "Untyped"})
}
`

func generate(t *testing.T, more string) ([]kind, error) {
	folder := t.TempDir()
	text := strings.Replace(source, "MORE", more, 1)
	if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return readKinds(folder)
}

func TestSchemaHasTheTypesTextsAndConstraintsOfTheFields(t *testing.T) {
	kinds, err := generate(t, "")
	if err != nil {
		t.Fatal(err)
	}
	found, err := json.Marshal(kinds)
	if err != nil {
		t.Fatal(err)
	}
	expected := `[{"group":"a.dev","version":"v1","kind":"Thing","plural":"thingies","scope":"Cluster",` +
		`"shortNames":["t","th"],"columns":[` +
		`{"jsonPath":".status.conditions[?(@.type==\"Ready\")].status","name":"Ready","type":"string"},` +
		`{"jsonPath":".spec.hostName","name":"Host, long","priority":1,"type":"string"}],` +
		`"spec":{"description":"A thing, of two lines.","properties":{` +
		`"hostName":{"description":"Name of the host.","minLength":1,"pattern":"^[a-z]+$","type":"string"},` +
		`"labels":{"additionalProperties":{"type":"string"},"type":"object"},` +
		`"mode":{"enum":["on","off"],"type":"string"},` +
		`"ports":{"description":"Its ports.","items":{"description":"A port.","properties":{"number":` +
		`{"default":80,"format":"int32","minimum":1,"type":"integer"}},"type":"object"},"type":"array"},` +
		`"raw":{"x-kubernetes-preserve-unknown-fields":true},` +
		`"until":{"format":"date-time","type":"string"},` +
		`"weight":{"format":"double","type":"number"}},"required":["hostName","weight"],"type":"object"},` +
		`"status":{"properties":{"url":{"type":"string"}},"required":["url"],"type":"object"}}]`
	if string(found) != expected {
		t.Errorf("found\n%s\nexpected\n%s", found, expected)
	}
}

func TestTypeWithoutASchemaIsRefusedWithItsLine(t *testing.T) {
	for more, words := range map[string]string{
		"When chan int `json:\"when\"`":                           "no schema for this type: use strings",
		"Other flag.Value `json:\"other\"`":                       "no schema for this type: use strings",
		"Untagged string":                                         "a field needs its name in JSON",
		"Numbers map[int]string `json:\"numbers\"`":               "the keys of a map are strings",
		"Inner *ThingSpec `json:\"inner\"`":                       "ThingSpec contains itself",
		"// +kubebuilder:validation:Minn=1\n\tA int `json:\"a\"`": "the marker +kubebuilder:validation:Minn is not known",
	} {
		_, err := generate(t, more)
		if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "main.go:") {
			t.Errorf("%s: %v", more, err)
		}
	}
}
