// Command crds prints the kinds that the types of a plugin define, as JSON. Not part of the component: `ostler plugin crds`
// runs it with the plugin's folder. It reads the source, since a compiled program lacks its comments.
package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	kinds, err := readKinds(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(kinds); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type schema map[string]any

// kind is a kind with the schemas of its types.
type kind struct {
	Group      string           `json:"group"`
	Version    string           `json:"version"`
	Kind       string           `json:"kind"`
	Plural     string           `json:"plural,omitempty"`
	Scope      string           `json:"scope"`
	ShortNames []string         `json:"shortNames,omitempty"`
	Categories []string         `json:"categories,omitempty"`
	Columns    []map[string]any `json:"columns,omitempty"`
	Spec       schema           `json:"spec"`
	Status     schema           `json:"status,omitempty"`
}

// declared is a type of the package.
type declared struct {
	name    string
	is      ast.Expr
	comment *ast.CommentGroup
}

type generator struct {
	files     *token.FileSet
	types     map[string]declared
	constants map[string]string
}

// readKinds reads the kinds of the package in a folder: those of each ostler.Reconciler[Spec] whose Spec is a struct of the
// package. The status is the struct that is named like the kind, with Status appended.
func readKinds(folder string) ([]kind, error) {
	g := generator{token.NewFileSet(), map[string]declared{}, map[string]string{}}
	own := func(info fs.FileInfo) bool { return !strings.HasSuffix(info.Name(), "_test.go") }
	//lint:ignore SA1019 a single package without its imports is all that is needed
	packages, err := parser.ParseDir(g.files, folder, own, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	kinds := []kind{}
	var files []*ast.File
	for _, name := range sortedKeys(packages) {
		for _, file := range sortedKeys(packages[name].Files) {
			files = append(files, packages[name].Files[file])
		}
	}
	for _, file := range files {
		g.declare(file)
	}
	for _, file := range files {
		for _, literal := range findReconcilers(file) {
			found, err := g.describeKind(literal)
			if err != nil {
				return nil, err
			}
			if found != nil {
				kinds = append(kinds, *found)
			}
		}
	}
	return kinds, nil
}

func sortedKeys[V any](all map[string]V) []string {
	keys := make([]string, 0, len(all))
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (g *generator) declare(file *ast.File) {
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range general.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				comment := spec.Doc
				if comment == nil {
					comment = general.Doc
				}
				g.types[spec.Name.Name] = declared{spec.Name.Name, spec.Type, comment}
			case *ast.ValueSpec:
				for i, name := range spec.Names {
					if i < len(spec.Values) && general.Tok == token.CONST {
						if text, err := text(spec.Values[i]); err == nil {
							g.constants[name.Name] = text
						}
					}
				}
			}
		}
	}
}

// reconciler is a literal of ostler.Reconciler[Spec].
type reconciler struct {
	literal *ast.CompositeLit
	spec    string
}

func findReconcilers(file *ast.File) []reconciler {
	var found []reconciler
	ast.Inspect(file, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		index, ok := literal.Type.(*ast.IndexExpr)
		if !ok {
			return true
		}
		selector, isSelector := index.X.(*ast.SelectorExpr)
		spec, isName := index.Index.(*ast.Ident)
		if isSelector && isName && selector.Sel.Name == "Reconciler" {
			found = append(found, reconciler{literal, spec.Name})
		}
		return true
	})
	return found
}

func (g *generator) describeKind(of reconciler) (*kind, error) {
	spec, ok := g.types[of.spec]
	if _, isStruct := spec.is.(*ast.StructType); !ok || !isStruct {
		return nil, nil
	}
	values := map[string]string{}
	for _, element := range of.literal.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		name, ok := pair.Key.(*ast.Ident)
		if !ok || name.Name != "APIVersion" && name.Name != "Kind" {
			continue
		}
		value, err := g.constant(pair.Value)
		if err != nil {
			return nil, err
		}
		values[name.Name] = value
	}
	found := kind{Kind: values["Kind"], Scope: "Namespaced"}
	group, version, isGrouped := strings.Cut(values["APIVersion"], "/")
	if !isGrouped || found.Kind == "" {
		return nil, g.fail(of.literal, "APIVersion must be a text such as \"example.dev/v1\", and Kind a text")
	}
	found.Group, found.Version = group, version
	_, markers := readComment(spec.comment)
	if err := g.addResource(&found, markers, spec.is); err != nil {
		return nil, err
	}
	var err error
	if found.Spec, err = g.describeNamed(of.spec, of.literal, nil); err != nil {
		return nil, err
	}
	if _, ok := g.types[found.Kind+"Status"]; ok {
		found.Status, err = g.describeNamed(found.Kind+"Status", of.literal, nil)
	}
	return &found, err
}

// constant returns the value of a text or of a constant of the package.
func (g *generator) constant(value ast.Expr) (string, error) {
	if name, ok := value.(*ast.Ident); ok {
		if text, ok := g.constants[name.Name]; ok {
			return text, nil
		}
	}
	found, err := text(value)
	if err != nil {
		return "", g.fail(value, "this must be a text, or a constant of this package that is one")
	}
	return found, nil
}

func text(value ast.Expr) (string, error) {
	literal, ok := value.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", fmt.Errorf("no text")
	}
	return strconv.Unquote(literal.Value)
}

func (g *generator) fail(at ast.Node, format string, arguments ...any) error {
	return fmt.Errorf("%s: %s", g.files.Position(at.Pos()), fmt.Sprintf(format, arguments...))
}

var primitives = map[string]schema{
	"string": {"type": "string"}, "bool": {"type": "boolean"},
	"int": {"type": "integer", "format": "int64"}, "int64": {"type": "integer", "format": "int64"},
	"int32": {"type": "integer", "format": "int32"}, "int16": {"type": "integer"}, "int8": {"type": "integer"},
	"uint": {"type": "integer", "minimum": 0}, "uint64": {"type": "integer", "minimum": 0},
	"uint32": {"type": "integer", "minimum": 0}, "uint16": {"type": "integer", "minimum": 0},
	"uint8": {"type": "integer", "minimum": 0}, "float64": {"type": "number", "format": "double"},
	"float32": {"type": "number", "format": "float"},
}

// known are types of the standard library and of the SDK.
var known = map[string]schema{
	"json.RawMessage": {"x-kubernetes-preserve-unknown-fields": true},
	"time.Time":       {"type": "string", "format": "date-time"},
}

// describeType returns the structural schema of a type.
func (g *generator) describeType(of ast.Expr, outer []string) (schema, error) {
	switch of := of.(type) {
	case *ast.ParenExpr:
		return g.describeType(of.X, outer)
	case *ast.StarExpr:
		return g.describeType(of.X, outer)
	case *ast.InterfaceType:
		return schema{"x-kubernetes-preserve-unknown-fields": true}, nil
	case *ast.Ident:
		if _, ok := g.types[of.Name]; ok {
			return g.describeNamed(of.Name, of, outer)
		}
		if of.Name == "any" {
			return schema{"x-kubernetes-preserve-unknown-fields": true}, nil
		}
		if found, ok := primitives[of.Name]; ok {
			return clone(found), nil
		}
	case *ast.ArrayType:
		if element, ok := of.Elt.(*ast.Ident); ok && (element.Name == "byte" || element.Name == "uint8") {
			return schema{"type": "string", "format": "byte"}, nil
		}
		items, err := g.describeType(of.Elt, outer)
		return schema{"type": "array", "items": items}, err
	case *ast.MapType:
		if key, ok := of.Key.(*ast.Ident); ok && key.Name == "string" {
			values, err := g.describeType(of.Value, outer)
			return schema{"type": "object", "additionalProperties": values}, err
		}
		return nil, g.fail(of, "the keys of a map are strings in JSON")
	case *ast.StructType:
		return g.describeStruct(of, outer)
	case *ast.SelectorExpr:
		if imported, ok := of.X.(*ast.Ident); ok {
			if found, ok := known[imported.Name+"."+of.Sel.Name]; ok {
				return clone(found), nil
			}
		}
	}
	return nil, g.fail(of, "no schema for this type: use strings, numbers, bools, slices, maps, structs of this package, any, "+
		"json.RawMessage or time.Time")
}

func clone(of schema) schema {
	made := schema{}
	for key, value := range of {
		made[key] = value
	}
	return made
}

func (g *generator) describeNamed(name string, at ast.Node, outer []string) (schema, error) {
	if slices.Contains(outer, name) {
		return nil, g.fail(at, "%s contains itself, which no schema of a CRD can express: use any", name)
	}
	of := g.types[name]
	found, err := g.describeType(of.is, append(outer[:len(outer):len(outer)], name))
	if err != nil {
		return nil, err
	}
	description, markers := readComment(of.comment)
	if description != "" {
		found["description"] = description
	}
	_, err = g.addMarkers(found, markers, of.is)
	return found, err
}

func (g *generator) describeStruct(of *ast.StructType, outer []string) (schema, error) {
	properties, required := schema{}, []string{}
	for _, field := range of.Fields.List {
		name, options := "", ""
		if field.Tag != nil {
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				return nil, g.fail(field, "%v", err)
			}
			name, options, _ = strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		}
		if name == "-" {
			continue
		}
		found, err := g.describeType(field.Type, outer)
		if err != nil {
			return nil, err
		}
		if len(field.Names) == 0 && name == "" {
			// The fields of an embedded struct are those of the outer one.
			inner, _ := found["properties"].(schema)
			for key, value := range inner {
				properties[key] = value
			}
			more, _ := found["required"].([]string)
			required = append(required, more...)
			continue
		}
		if name == "" {
			return nil, g.fail(field, "a field needs its name in JSON: `json:\"name\"`")
		}
		comment := field.Doc
		if comment == nil {
			comment = field.Comment
		}
		description, markers := readComment(comment)
		if description != "" {
			found["description"] = description
		}
		optional, err := g.addMarkers(found, markers, field)
		if err != nil {
			return nil, err
		}
		if !optional && !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			required = append(required, name)
		}
		properties[name] = found
	}
	made := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		made["required"] = required
	}
	return made, nil
}

// readComment returns the text of a comment with a line per paragraph, and its markers.
func readComment(comment *ast.CommentGroup) (string, []string) {
	if comment == nil {
		return "", nil
	}
	var paragraphs, markers []string
	words := []string{}
	end := func() {
		if len(words) > 0 {
			paragraphs = append(paragraphs, strings.Join(words, " "))
		}
		words = []string{}
	}
	for _, line := range strings.Split(comment.Text(), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "+"):
			markers = append(markers, line[1:])
		case line == "":
			end()
		default:
			words = append(words, line)
		}
	}
	end()
	return strings.Join(paragraphs, "\n\n"), markers
}

var keywords = map[string]string{
	"MinLength": "minLength", "MaxLength": "maxLength", "Pattern": "pattern", "Minimum": "minimum", "Maximum": "maximum",
	"MinItems": "minItems", "MaxItems": "maxItems", "Format": "format", "MultipleOf": "multipleOf", "Type": "type",
}

// addMarkers adds the validation of controller-gen's markers, and returns whether they make a field optional.
func (g *generator) addMarkers(to schema, markers []string, at ast.Node) (optional bool, err error) {
	for _, marker := range markers {
		name, value, _ := strings.Cut(marker, "=")
		rule, isValidation := strings.CutPrefix(name, "kubebuilder:validation:")
		switch {
		case name == "optional" || rule == "Optional":
			optional = true
		case rule == "Required", strings.HasPrefix(name, "kubebuilder:resource"), strings.HasPrefix(name, "kubebuilder:printcolumn"):
		case name == "kubebuilder:pruning:PreserveUnknownFields":
			to["x-kubernetes-preserve-unknown-fields"] = true
		case name == "kubebuilder:default" || name == "default":
			to["default"] = literal(value)
			optional = true
		case rule == "Enum":
			var values []any
			for _, one := range strings.Split(value, ";") {
				values = append(values, literal(one))
			}
			to["enum"] = values
		case isValidation && keywords[rule] != "":
			to[keywords[rule]] = literal(value)
		case strings.HasPrefix(name, "kubebuilder:"):
			return optional, g.fail(at, "the marker +%s is not known", name)
		}
	}
	return optional, nil
}

// literal returns the value of a marker: JSON, a text in backquotes, or a text as it is.
func literal(value string) any {
	if inner, ok := strings.CutPrefix(value, "`"); ok {
		return strings.TrimSuffix(inner, "`")
	}
	var parsed any
	if json.Unmarshal([]byte(value), &parsed) == nil {
		return parsed
	}
	return value
}

// parameter is one of `path=things,shortName=a;b`, with a value in quotes or without.
var parameter = regexp.MustCompile("(\\w+)=(\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|[^,]*)")

func parameters(of string) map[string]any {
	values := map[string]any{}
	for _, found := range parameter.FindAllStringSubmatch(of, -1) {
		values[found[1]] = literal(found[2])
	}
	return values
}

// addResource adds the names, the scope and the printer columns of the markers.
func (g *generator) addResource(to *kind, markers []string, at ast.Node) error {
	for _, marker := range markers {
		if given, ok := strings.CutPrefix(marker, "kubebuilder:resource:"); ok {
			for name, value := range parameters(given) {
				text := fmt.Sprint(value)
				switch name {
				case "path":
					to.Plural = text
				case "scope":
					to.Scope = text
				case "shortName":
					to.ShortNames = strings.Split(text, ";")
				case "categories":
					to.Categories = strings.Split(text, ";")
				default:
					return g.fail(at, "+kubebuilder:resource has no %s: write path, scope, shortName or categories", name)
				}
			}
		}
		if given, ok := strings.CutPrefix(marker, "kubebuilder:printcolumn:"); ok {
			column := map[string]any{"type": "string"}
			for name, value := range parameters(given) {
				switch name {
				case "name", "type", "description", "priority", "format":
					column[name] = value
				case "JSONPath":
					column["jsonPath"] = value
				default:
					return g.fail(at, "+kubebuilder:printcolumn has no %s: write name, type, JSONPath, description, format or "+
						"priority", name)
				}
			}
			to.Columns = append(to.Columns, column)
		}
	}
	return nil
}
