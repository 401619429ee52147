package record

import (
	"net/netip"
	"net/url"
	"regexp"
	"strings"
)

// pieces are what may have to be masked within a text, the longer forms first:
// moments, addresses of the web, identifiers of sessions, IPv6 addresses, what
// stands in quotes, paths of files, and words.
var pieces = regexp.MustCompile(`(?P<moment>\d{4}-\d\d-\d\d[T ]\d\d:[\d:.]+)` +
	`|(?P<url>[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>,;]+)` +
	`|(?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})` +
	`|(?P<six>(?:[0-9a-fA-F]{0,4}:){2,}[0-9a-fA-F.]*(?:%\w+)?)` +
	`|(?P<quoted>"[^"]*"|'[^'\s]*'|«[^»]*»|»[^«]*«|„[^“”]*[“”]|“[^”]*”)` +
	`|(?P<path>/[^\s:,;"'()]+)` +
	`|(?P<word>[\p{L}\p{N}_][\p{L}\p{N}_.@-]*)`)

// What the text before a word says of it, and what comes after a host.
var (
	beforeHost = regexp.MustCompile(`(?i)(?:\blookup|\bhost|\bhostaddr|\bserver)\s*[= ]\s*$`)
	beforeUser = regexp.MustCompile(`(?i)\b(?:user|role)\s*[= ]\s*$`)
	beforeBase = regexp.MustCompile(`(?i)\b(?:database|dbname)\s*[= ]\s*$`)
	afterHost  = regexp.MustCompile(`^:\d{1,5}\b`)
	dotted     = regexp.MustCompile(`^(?i:[a-z0-9_-]+\.)+(?i:[a-z][a-z0-9-]+)$`)
	beforePath = regexp.MustCompile(`[\p{L}\p{N}]$`) // so that it is none, but a part of one word
	letters    = regexp.MustCompile(`\p{L}`)
)

// certificate is where an error of crypto/x509 begins; what follows holds names
// of all kinds.
const certificate = "x509:"

// text masks a text that may hold anything: every name that is known, and
// whatever else has the form of an address, a host, a path, or stands in quotes.
func (m *masker) text(s string) string {
	if before, _, found := strings.Cut(s, certificate); found {
		return m.text(before) + certificate + " (masked)"
	}
	var out strings.Builder
	end := 0
	for _, at := range pieces.FindAllStringSubmatchIndex(s, -1) {
		out.WriteString(s[end:at[0]])
		end = at[1]
		p := piece{text: s[at[0]:end], before: s[:at[0]], after: s[end:]}
		for i, kind := range pieces.SubexpNames() {
			if i > 0 && at[2*i] >= 0 {
				out.WriteString(m.piece(kind, p))
			}
		}
	}
	out.WriteString(s[end:])
	return out.String()
}

// piece is a part of a text, and what stands around it.
type piece struct{ text, before, after string }

func (m *masker) piece(kind string, p piece) string {
	switch kind {
	case "moment":
		return p.text
	case "url":
		return m.url(p.text)
	case "uuid":
		return m.numbered("session", strings.ToLower(p.text))
	case "six":
		if ip, err := netip.ParseAddr(p.text); err == nil {
			return m.host(ip.WithZone("").String())
		}
		return p.text // such as a time of day
	case "quoted":
		return m.quoted(p)
	case "path":
		if beforePath.MatchString(p.before) {
			return m.parts(p.text)
		}
		return m.path(p.text)
	default:
		return m.bare(p)
	}
}

// url keeps the scheme and the port.
func (m *masker) url(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		scheme, _, _ := strings.Cut(text, "://")
		return scheme + "://" + m.numbered("masked", text)
	}
	out := url.URL{Scheme: u.Scheme, Host: m.host(u.Hostname())}
	if strings.Contains(out.Host, ":") {
		out.Host = "[" + out.Host + "]"
	}
	if u.Port() != "" {
		out.Host += ":" + u.Port()
	}
	if u.Path == "/patroni" { // as in every api_url
		out.Path = u.Path
	} else if strings.Trim(u.Path, "/") != "" {
		out.Path = m.path(u.Path)
	}
	return out.String()
}

// quoted masks what stands in quotes: a name in most errors of PostgreSQL.
func (m *masker) quoted(p piece) string {
	inside := []rune(p.text)
	opening, closing := string(inside[:1]), string(inside[len(inside)-1:])
	p.text = string(inside[1 : len(inside)-1])
	if p.text == "" {
		return opening + closing
	}
	masked := m.bare(p)
	if masked == p.text {
		masked = m.numbered("masked", p.text)
	}
	return opening + masked + closing
}

// bare masks one word.
func (m *masker) bare(p piece) string {
	word := strings.TrimRight(p.text, ".-")
	tail := p.text[len(word):]
	if word == "" {
		return p.text
	}
	if mask, known := m.known(word); known {
		return mask + tail
	}
	ip, err := netip.ParseAddr(word)
	switch {
	case err == nil:
		return m.host(ip.WithZone("").String()) + tail
	case !letters.MatchString(word):
		return p.text
	case strings.Contains(word, "@"):
		return m.numbered("masked", word) + tail
	case beforeUser.MatchString(p.before):
		return m.numbered("user", word) + tail
	case beforeBase.MatchString(p.before):
		return m.numbered("database", word) + tail
	case beforeHost.MatchString(p.before), afterHost.MatchString(p.after), dotted.MatchString(word) && word != "pg_hba.conf":
		return m.host(word) + tail
	}
	return m.within(word) + tail
}

// short is the length up to which a name is not looked for within other words.
const short = 2

// within masks names that are a part of a longer word, such as a slot's. Patroni
// writes a member's name there in small letters, with _ for what is none.
func (m *masker) within(word string) string {
	for _, name := range m.longest {
		for _, form := range []string{name, strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToLower(name))} {
			word = strings.ReplaceAll(word, form, m.names[name])
		}
	}
	return word
}

// parts masks words between slashes, such as service/main/ and i/o.
func (m *masker) parts(text string) string {
	words := strings.Split(text, "/")
	for i, w := range words {
		words[i] = m.bare(piece{text: w})
	}
	return strings.Join(words, "/")
}

// known is what a name, a host or an identifier of the cluster became.
func (m *masker) known(word string) (string, bool) {
	if mask, known := m.names[word]; known {
		return mask, true
	}
	if mask, known := m.names[strings.ToLower(word)]; known {
		return mask, true
	}
	if mask, known := m.hosts[strings.ToLower(word)]; known {
		return mask, true
	}
	if mask, known := m.other["system "+word]; known {
		return strings.TrimPrefix(mask, "system"), true
	}
	return "", false
}
