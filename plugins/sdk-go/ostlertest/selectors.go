//go:build !wasip1

package ostlertest

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// parseSelectors parses the selectors of a list, and returns a function that evaluates them.
func parseSelectors(labels, fields *string) (func(Object) bool, error) {
	var requirements []func(Object) bool
	if labels != nil {
		parts, err := splitRequirements(*labels)
		if err != nil {
			return nil, fmt.Errorf("label-selector: %w", err)
		}
		for _, part := range parts {
			holds, err := parseLabel(strings.TrimSpace(part))
			if err != nil {
				return nil, fmt.Errorf("label-selector: %w", err)
			}
			requirements = append(requirements, func(object Object) bool {
				value, _ := at(object, "metadata", "labels").(Object)
				return holds(value)
			})
		}
	}
	if fields != nil && strings.TrimSpace(*fields) != "" {
		for _, part := range strings.Split(*fields, ",") {
			holds, err := parseField(part)
			if err != nil {
				return nil, fmt.Errorf("field-selector: %w", err)
			}
			requirements = append(requirements, holds)
		}
	}
	return func(object Object) bool {
		return !slices.ContainsFunc(requirements, func(holds func(Object) bool) bool { return !holds(object) })
	}, nil
}

// splitRequirements splits at commas that are not inside of parentheses.
func splitRequirements(text string) ([]string, error) {
	var parts []string
	start, depth := 0, 0
	for i, c := range text {
		switch {
		case c == '(' && depth == 0:
			depth = 1
		case c == ')' && depth == 1:
			depth = 0
		case c == '(' || c == ')':
			return nil, fmt.Errorf("unbalanced parenthesis at `%s`", text[i:])
		case c == ',' && depth == 0:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	if depth > 0 {
		return nil, fmt.Errorf("unbalanced parenthesis at `%s`", text)
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	return append(parts, text[start:]), nil
}

var (
	labelKey = regexp.MustCompile(`^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`)
	inSet    = regexp.MustCompile(`^(\S+)\s+(in|notin)\s*\(([^()]*)\)$`)
)

// parseLabel parses a requirement on labels.
func parseLabel(part string) (func(labels Object) bool, error) {
	key, values, operator := part, []string{}, "exists"
	if rest, ok := strings.CutPrefix(part, "!"); ok {
		key, operator = strings.TrimSpace(rest), "absent"
	} else if found := inSet.FindStringSubmatch(part); found != nil {
		key, operator = found[1], found[2]
		for _, value := range strings.Split(found[3], ",") {
			values = append(values, strings.TrimSpace(value))
		}
	} else {
		for _, sign := range []string{">", "<", "!=", "==", "="} {
			if left, right, ok := strings.Cut(part, sign); ok {
				key, values, operator = strings.TrimSpace(left), []string{strings.TrimSpace(right)}, sign
				break
			}
		}
	}
	if !labelKey.MatchString(key) {
		return nil, fmt.Errorf("not the key of a label at `%s`", part)
	}
	bound := int64(0)
	if operator == ">" || operator == "<" {
		parsed, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("not a whole number at `%s`", part)
		}
		bound = parsed
	}
	return func(labels Object) bool {
		value, exists := labels[key].(string)
		number, err := strconv.ParseInt(value, 10, 64)
		switch operator {
		case "exists":
			return exists
		case "absent":
			return !exists
		case "notin", "!=":
			return !exists || !slices.Contains(values, value)
		case ">":
			return exists && err == nil && number > bound
		case "<":
			return exists && err == nil && number < bound
		}
		return exists && slices.Contains(values, value)
	}, nil
}

// parseField parses a comparison of a field. A field that is missing counts as empty.
func parseField(part string) (func(Object) bool, error) {
	path, value, differs := strings.Cut(part, "!=")
	if !differs {
		var ok bool
		if path, value, ok = strings.Cut(part, "="); !ok {
			return nil, fmt.Errorf("`=` or `!=` is missing at `%s`", part)
		}
		value = strings.TrimPrefix(value, "=")
	}
	path, value = strings.TrimSpace(path), strings.TrimSpace(value)
	fields := strings.Split(path, ".")
	if slices.Contains(fields, "") || strings.ContainsAny(path, " \t") {
		return nil, fmt.Errorf("not the path of a field at `%s`", part)
	}
	return func(object Object) bool {
		found := ""
		switch value := at(object, fields...).(type) {
		case nil:
		case string:
			found = value
		default:
			bytes, _ := json.Marshal(value)
			found = string(bytes)
		}
		return (found == value) != differs
	}, nil
}
