package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
)

const (
	maxItems   = 1 << 20 // numbers that until and its kin may count
	maxInclude = 64      // how deep include may nest
)

// denied are sprig's functions that are no pure function of their arguments
// although its hermetic set holds them, and those whose only use is secrets.
var denied = []string{
	"ago", "hello", "shuffle", "randInt", "toDate", "mustToDate", "mustDateModify", "must_date_modify",
	"genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey",
	"genSignedCert", "genSignedCertWithKey", "buildCustomCert",
	"bcrypt", "htpasswd", "encryptAES", "decryptAES", "derivePassword",
}

// Functions returns the names that a template may call, sorted, without those
// of text/template itself.
func Functions() []string {
	return slices.Sorted(maps.Keys(functions(nil)))
}

// functions is an allow list: sprig's hermetic set without the denied ones, the
// unbounded ones replaced, and ours. include runs templates of set.
func functions(set *template.Template) template.FuncMap {
	f := sprig.HermeticTxtFuncMap()
	for _, name := range denied {
		delete(f, name)
	}
	maps.Copy(f, template.FuncMap{
		"keys": sortedKeys, "values": sortedValues,
		"repeat": repeat, "until": until, "untilStep": untilStep, "seq": denySeq,
		"indent": indent, "nindent": func(n int, s string) (string, error) { t, err := indent(n, s); return "\n" + t, err },
		"fail": fail, "include": include(set),
		"hostport": hostport, "bindAddress": bindAddress, "hostOnly": hostOnly,
		"haproxyName": haproxyName, "haproxyQuote": haproxyQuote, "haproxySocket": haproxySocket,
		"haproxyTime": haproxyTime, "agentSend": agentSend,
		"pgbouncerQuote": pgbouncerQuote, "pgbouncerName": pgbouncerName, "pgDSN": pgDSN,
		"withTag": withTag, "withoutTag": withoutTag,
	})
	return f
}

// fail ends the rendering with a message: fail "pool %s has no server" .Name.
func fail(format string, args ...any) (string, error) {
	return "", fmt.Errorf(format, args...)
}

// include renders a named template into a value, so that it can be piped on.
func include(set *template.Template) func(string, any) (string, error) {
	depth := 0
	return func(name string, data any) (string, error) {
		if depth++; depth > maxInclude {
			return "", fmt.Errorf("include %s: nested more than %d deep", quoted(name), maxInclude)
		}
		defer func() { depth-- }()
		w := limited{left: maxBytes}
		if err := set.ExecuteTemplate(&w, name, data); err != nil {
			return "", err
		}
		return w.b.String(), nil
	}
}

// withTag keeps the servers whose tag has the value.
func withTag(key, value string, servers []Server) []Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s Server) bool { return s.Tags[key] != value })
}

// withoutTag keeps the servers whose tag has another value or is not set.
func withoutTag(key, value string, servers []Server) []Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s Server) bool { return s.Tags[key] == value })
}

// sortedKeys replaces sprig's keys, which returns them in random order.
func sortedKeys(dicts ...any) ([]string, error) {
	var keys []string
	for _, d := range dicts {
		switch m := d.(type) {
		case map[string]any:
			keys = slices.AppendSeq(keys, maps.Keys(m))
		case map[string]string:
			keys = slices.AppendSeq(keys, maps.Keys(m))
		default:
			return nil, fmt.Errorf("keys takes maps, not %T", d)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// sortedValues replaces sprig's values: by key, not at random.
func sortedValues(dict any) ([]any, error) {
	keys, err := sortedKeys(dict)
	if err != nil {
		return nil, err
	}
	values := make([]any, 0, len(keys))
	for _, k := range keys {
		switch m := dict.(type) {
		case map[string]any:
			values = append(values, m[k])
		case map[string]string:
			values = append(values, m[k])
		}
	}
	return values, nil
}

func repeat(n int, s string) (string, error) {
	if n < 0 || len(s) > 0 && n > maxBytes/len(s) {
		return "", fmt.Errorf("repeat %d: more than %d bytes, or less than none", n, maxBytes)
	}
	return strings.Repeat(s, n), nil
}

func indent(n int, s string) (string, error) {
	pad, err := repeat(n, " ")
	if err == nil && (strings.Count(s, "\n")+1)*n > maxBytes {
		err = fmt.Errorf("indent %d: more than %d bytes", n, maxBytes)
	}
	if err != nil {
		return "", err
	}
	return pad + strings.ReplaceAll(s, "\n", "\n"+pad), nil
}

func until(n int) ([]int, error) {
	if n < 0 {
		return untilStep(0, n, -1)
	}
	return untilStep(0, n, 1)
}

func untilStep(start, stop, step int) ([]int, error) {
	if step == 0 || (stop < start) != (step < 0) {
		return nil, nil
	}
	n := (stop - start) / step
	if n < 0 || n > maxItems {
		return nil, fmt.Errorf("counting from %d to %d: more than %d numbers", start, stop, maxItems)
	}
	list := make([]int, 0, n+1)
	for i := start; (i < stop) == (step > 0) && i != stop; i += step {
		list = append(list, i)
	}
	return list, nil
}

// denySeq stands in for sprig's seq, whose text has no bound.
func denySeq(...int) (string, error) {
	return "", fmt.Errorf("seq has no bound and is not offered; use until or untilStep")
}
