package ostler

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// Decode parses JSON into a pointer as [json.Unmarshal] does, but an integer that becomes an `any` is an int64 and not a float64,
// which would round it above 2^53; other numbers are float64. It is what Kubernetes' unstructured objects have.
func Decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	convertNumbers(reflect.ValueOf(into))
	return nil
}

// convertNumbers converts each json.Number that is in an interface.
func convertNumbers(value reflect.Value) {
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			convertNumbers(value.Elem())
		}
	case reflect.Interface:
		if !value.IsNil() && value.CanSet() && value.NumMethod() == 0 {
			value.Set(reflect.ValueOf(convertNumber(value.Interface())))
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				convertNumbers(value.Field(i))
			}
		}
	case reflect.Slice, reflect.Array:
		if isPlain(value.Type().Elem()) {
			return
		}
		for i := range value.Len() {
			convertNumbers(value.Index(i))
		}
	case reflect.Map:
		if isPlain(value.Type().Elem()) {
			return
		}
		for _, key := range value.MapKeys() {
			// The values of a map cannot be set in place.
			inner := reflect.New(value.Type().Elem()).Elem()
			inner.Set(value.MapIndex(key))
			convertNumbers(inner)
			value.SetMapIndex(key, inner)
		}
	}
}

// isPlain returns whether values of a type have no interface in them, by its kind alone.
func isPlain(of reflect.Type) bool {
	switch of.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Array, reflect.Map:
		return false
	}
	return true
}

func convertNumber(value any) any {
	switch value := value.(type) {
	case json.Number:
		if integer, err := value.Int64(); err == nil {
			return integer
		}
		float, _ := value.Float64()
		return float
	case map[string]any:
		for key, inner := range value {
			value[key] = convertNumber(inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = convertNumber(inner)
		}
	}
	return value
}
