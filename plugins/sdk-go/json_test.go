package ostler

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestIntegerOf64BitsArrivesAndLeavesAsItIs(t *testing.T) {
	type inner struct {
		Any any            `json:"any"`
		Raw json.Number    `json:"raw"`
		Map map[string]any `json:"map"`
	}
	var spec struct {
		Big    int64            `json:"big"`
		Any    any              `json:"any"`
		List   []any            `json:"list"`
		Inner  *inner           `json:"inner"`
		Inners []inner          `json:"inners"`
		Named  map[string]inner `json:"named"`
		Texts  []string         `json:"texts"`
		Bytes  json.RawMessage  `json:"bytes"`
		Nil    *inner           `json:"nil"`
	}
	text := `{"big":9223372036854775807,"any":{"n":-9007199254740993,"x":[1.5]},"list":[9007199254740993,"9007199254740993",null,true],` +
		`"inner":{"any":9007199254740993,"raw":9007199254740993,"map":{"a":9007199254740993}},"inners":[{"any":1,"raw":0,"map":null}],` +
		`"named":{"x":{"any":9007199254740993,"raw":2,"map":{}}},"texts":["a"],"bytes":9007199254740993,"nil":null}`
	if err := Decode([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	if n := spec.Any.(map[string]any)["n"]; n != int64(-9007199254740993) {
		t.Errorf("%T %v", n, n)
	}
	if x := spec.Any.(map[string]any)["x"].([]any)[0]; x != 1.5 {
		t.Errorf("%T %v", x, x)
	}
	if named := spec.Named["x"].Any; named != int64(9007199254740993) {
		t.Errorf("%T %v", named, named)
	}
	if written, err := json.Marshal(spec); err != nil || string(written) != text {
		t.Errorf("%v\n%s\n%s", err, written, text)
	}
	var whole any
	if err := Decode([]byte(`[1, 1e3]`), &whole); err != nil || !reflect.DeepEqual(whole, []any{int64(1), 1000.0}) {
		t.Errorf("%v %v", whole, err)
	}
	if err := Decode([]byte(`{`), &whole); err == nil {
		t.Error("it is no JSON")
	}
}
