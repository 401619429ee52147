package config

import (
	_ "embed" // the sentences of the manual
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// meanings has the manual's sentence for each key, a line each: path, tab,
// sentence. A test makes it of docs/configuration.md.
//
//go:embed meanings.txt
var meanings string

// Schema returns a JSON Schema of the configuration file, of draft 2020-12,
// made of Keys and the manual's sentences. It is about form and a little stricter
// than Parse: a number or true in quotes is a text to it. Faults of sense, such
// as a kill_after below silent_after, are Parse's alone.
func Schema() []byte {
	root := newSection()
	root.Dialect = "https://json-schema.org/draft/2020-12/schema"
	root.Title = "pgsteer's configuration"
	sentences := make(map[string]string)
	for line := range strings.Lines(meanings) {
		path, sentence, _ := strings.Cut(strings.TrimSpace(line), "\t")
		sentences[path] = sentence
	}
	for _, k := range Keys() {
		s := root
		for element := range strings.SplitSeq(k.Path, ".") {
			s = s.below(element)
		}
		s.describe(k, root)
		s.Description = sentences[k.Path]
	}
	root.Type = []string{"object"}
	root.at("clusters.NAME.nodes.NAME").orAddress()
	root.at("clusters.NAME.nodes.NAME.tags").PropertyNames = &schema{Pattern: "."}
	root.at("clusters.NAME.pools.NAME.sessions").PropertyNames = &schema{Enum: choices()}
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("config: the schema holds what JSON cannot say: %v", err))
	}
	return append(b, '\n')
}

// schema is the part of JSON Schema that is needed here.
type schema struct {
	Dialect       string             `json:"$schema,omitempty"`
	Title         string             `json:"title,omitempty"`
	Description   string             `json:"description,omitempty"`
	Type          []string           `json:"type,omitempty"`
	Enum          []string           `json:"enum,omitempty"`
	Pattern       string             `json:"pattern,omitempty"`
	Minimum       *int               `json:"minimum,omitempty"`
	Maximum       *int               `json:"maximum,omitempty"`
	Default       any                `json:"default,omitempty"`
	Properties    map[string]*schema `json:"properties,omitempty"`
	Items         *schema            `json:"items,omitempty"`
	PropertyNames *schema            `json:"propertyNames,omitempty"`
	// Others is false, or the schema of what is not among Properties.
	Others any `json:"additionalProperties,omitempty"`
}

// name is what topology.CheckName accepts.
var name = &schema{Pattern: `^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`}

// newSection is a map with keys of its own, which may have nothing below it.
func newSection() *schema { return &schema{Type: []string{"object", "null"}, Others: false} }

// at is the schema at a path of Keys.
func (s *schema) at(path string) *schema {
	for element := range strings.SplitSeq(path, ".") {
		s = s.below(element)
	}
	return s
}

// below is the schema of a path's next element, which is made if it is not there.
func (s *schema) below(element string) *schema {
	if element == "NAME" {
		if _, ok := s.Others.(*schema); !ok {
			s.Others, s.PropertyNames = newSection(), name
		}
		return s.Others.(*schema) //nolint:forcetypeassert // it was just made
	}
	key, isList := strings.CutSuffix(element, "[]")
	p := s.Properties[key]
	if p == nil {
		p = newSection()
		if s.Properties == nil {
			s.Properties = make(map[string]*schema)
		}
		s.Properties[key] = p
	}
	if !isList {
		return p
	}
	if p.Items == nil {
		*p = schema{Type: []string{"array", "null"}, Items: newSection(), Description: p.Description}
	}
	return p.Items
}

// describe sets what a key holds.
func (s *schema) describe(k Key, root *schema) {
	switch k.form {
	case formSection: // as it was made
	case formSingle:
		*s = single(k)
		s.Default = k.defaultValue()
	case formList:
		items := single(k)
		*s = schema{Type: []string{"array", "null"}, Items: &items}
	case formMap:
		value := single(k)
		s.Others, s.PropertyNames = &value, name
		if k.value == typeAddress { // their keys are addresses too
			s.PropertyNames = &value
		}
	case formLike:
		s.Properties = make(map[string]*schema)
		for key, p := range root.Properties[string(k.value)].Properties {
			plain := *p
			plain.Default = nil
			s.Properties[key] = &plain
		}
	}
}

// defaultValue is the default as JSON has it, nil when there is none to show.
func (k Key) defaultValue() any {
	switch n, err := strconv.Atoi(k.Default); {
	case k.Default == "" || k.Default == "NAME":
		return nil
	case k.value == typeBool:
		return k.Default == "true"
	case err == nil && (k.value == typeNumber || limits[string(k.value)] != 0):
		return n
	}
	return k.Default
}

// single is the schema of a key's single value, or of one that it holds.
func single(k Key) schema {
	text := func(pattern string) schema { return schema{Type: []string{"string"}, Pattern: pattern} }
	number := func(least, most int) schema {
		return schema{Type: []string{"integer"}, Minimum: &least, Maximum: &most}
	}
	if k.words != nil {
		return schema{Enum: k.words}
	}
	switch k.value {
	case typeText, typeSelector, typeConsole: // see below
	case typeBool:
		return schema{Type: []string{"boolean"}}
	case typeNumber:
		return number(0, maxCount)
	case kindPercent:
		return number(1, limits[kindPercent])
	case kindPort:
		return number(1, math.MaxUint16)
	case typeDuration:
		return text(`^[+]?(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`)
	case typeSize: // 0 has no unit
		s := number(0, 0)
		s.Type, s.Pattern = append(s.Type, "string"), `^ *[+]?[0-9.][0-9A-Za-z.]* *(B|kB|MB|GB|TB) *$|^0$`
		return s
	case typeAddress:
		return text(`^(off|.*:[0-9]{1,5})?$`)
	case typeNode, typePool:
		return text(`^([^/]+/[^/]+)?$`)
	case typeServer:
		return text(`^([^/]+/[^/]+/[^/]+)?$`)
	case typeFileMode: // 0640 is a number to YAML
		return schema{Type: []string{"string", "integer"}, Pattern: `^0*[0-7]{3}$`}
	}
	// A text is taken as it is written, also where YAML sees a number.
	return schema{Type: []string{"string", "number", "boolean"}}
}

// orAddress allows the short form of a node, its address alone.
func (s *schema) orAddress() {
	address := single(Key{value: typeAddress})
	s.Type, s.Pattern = []string{"object", "string"}, address.Pattern
}
