package tap

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// hidden stands for a secret, as config.Secret shows itself.
const hidden = "****"

// Where texts may hold a secret whose value we do not know: the login of a URL,
// and what stands behind a word for one, as key=value, key: value or in quotes.
var (
	urlLogin = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s/@:"'<>]*):[^\s/"'<>]*@`)
	keyed    = regexp.MustCompile(`(?i)([a-z_-]*(?:password|passwd|passphrase|secret|token|authorization)[a-z_-]*["']?\s*[=:]\s*)` +
		`(?:(?:basic|bearer)\s+)?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&"']+)`)
	secretKey = regexp.MustCompile(`(?i)password|passwd|passphrase|secret|token|authorization`)
)

// free are the keys below which a text may be anything; elsewhere stand names,
// which a short password could be a part of by chance.
var free = map[string]bool{"Text": true, "text": true, "api_url": true, "Tags": true, "tags": true, "end": true}

// redacted is a line's JSON with every secret hidden.
func redacted(line Line, secrets []string) ([]byte, error) {
	b, err := json.Marshal(line)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	return json.Marshal(hide(tree, secrets, false))
}

// hide walks whatever a line holds, so that no text is ever forgotten.
func hide(v any, secrets []string, anything bool) any {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			if text, is := below.(string); is && text != "" && secretKey.MatchString(key) {
				v[key] = hidden
				continue
			}
			v[key] = hide(below, secrets, anything || free[key])
		}
	case []any:
		for i, below := range v {
			v[i] = hide(below, secrets, anything)
		}
	case string:
		return hideText(v, secrets, anything)
	}
	return v
}

func hideText(s string, secrets []string, anything bool) string {
	if anything {
		for _, secret := range secrets {
			if secret != "" {
				s = strings.ReplaceAll(s, secret, hidden)
			}
		}
	}
	s = urlLogin.ReplaceAllString(s, "$1:"+hidden+"@")
	return keyed.ReplaceAllString(s, "${1}"+hidden)
}
