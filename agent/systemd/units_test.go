package systemd

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const examples = "../../examples/"

// unit reads a unit file: the values of each key, by "Section.Key".
func unit(t *testing.T, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(examples + path)
	if err != nil {
		t.Fatal(err)
	}
	values, section := make(map[string][]string), ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		key, value, assigned := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		case !assigned:
			t.Errorf("%s: %q is no assignment", path, line)
		default:
			values[section+"."+key] = append(values[section+"."+key], value)
		}
	}
	return values
}

func want(t *testing.T, path string, settings map[string]string) {
	t.Helper()
	got := unit(t, path)
	for key, value := range settings {
		if diff := cmp.Diff([]string{value}, got[key]); diff != "" {
			t.Errorf("%s: %s (-want +got)\n%s", path, key, diff)
		}
	}
}

// What the agent relies on: the protocol of Notifier, a restart without end, and
// the folders of the state and of the socket.
func TestUnits(t *testing.T) {
	for _, path := range []string{"systemd/pgsteer.service", "haproxy/pgsteer.service"} {
		want(t, path, map[string]string{
			"Service.Type": "notify", "Service.WatchdogSec": "15s", "Service.Restart": "always", "Unit.StartLimitIntervalSec": "0",
			"Service.ExecStart":        "/usr/local/bin/pgsteer run -c /etc/pgsteer/pgsteer.yaml",
			"Service.ExecReload":       "/bin/kill -HUP $MAINPID",
			"Service.StateDirectory":   "pgsteer",
			"Service.RuntimeDirectory": "pgsteer", // /run/pgsteer/pgsteer.sock, where pgsteer check looks
			"Service.NoNewPrivileges":  "true", "Service.ProtectSystem": "strict",
			"Service.RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
		})
	}
	want(t, "systemd/pgsteer.service", map[string]string{
		"Service.User": "pgsteer", "Service.CapabilityBoundingSet": "", "Service.SupplementaryGroups": "haproxy",
		"Service.RuntimeDirectoryMode": "0755", // HAProxy's user may come to the socket
	})
	want(t, "systemd/haproxy.service.d/pgsteer.conf", map[string]string{
		"Unit.After": "pgsteer.service", "Service.Restart": "always", "Unit.StartLimitIntervalSec": "0",
		"Service.Environment": `"EXTRAOPTS=-f /var/lib/pgsteer/haproxy.cfg -S /run/haproxy-master.sock,mode,660,group,pgsteer"`,
	})
	for key := range unit(t, "systemd/haproxy.service.d/pgsteer.conf") {
		if strings.HasPrefix(key, "Service.Exec") {
			t.Errorf("the drop-in sets %s: versions of the package differ there", key)
		}
	}
}

// TestUnitsVerify has systemd itself read the units, in a folder where what they
// start is there.
func TestUnitsVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		missing(t, "systemd-analyze is not installed (Debian: package systemd)")
	}
	dir := t.TempDir()
	local := regexp.MustCompile(`/usr/local/bin/pgsteer|(?m)^(User|Group|SupplementaryGroups)=.*$`)
	for name, text := range map[string]string{
		"pgsteer.service":              read(t, "systemd/pgsteer.service"),
		"haproxy.service":              "[Service]\nType=notify\nExecStart=/bin/true $EXTRAOPTS\n",
		"haproxy.service.d/local.conf": read(t, "systemd/haproxy.service.d/pgsteer.conf"),
	} {
		text = local.ReplaceAllStringFunc(text, func(s string) string {
			if strings.HasPrefix(s, "/") {
				return "/bin/true"
			}
			return ""
		})
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pgsteer.service", "haproxy.service"} {
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", filepath.Join(dir, name)).CombinedOutput()
		if err != nil || len(strings.TrimSpace(string(out))) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(examples + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// The polkit rule names one action, one unit, one verb and one user, all of them
// needed, and gives one answer.
func TestPolkitRule(t *testing.T) {
	text := regexp.MustCompile(`(?m)//.*$`).ReplaceAllString(read(t, "systemd/50-pgsteer.rules"), "")
	got := strings.Join(strings.Fields(text), " ")
	const rule = `polkit.addRule(function (action, subject) { if (` +
		`action.id == "org.freedesktop.systemd1.manage-units" && ` +
		`action.lookup("unit") == "haproxy.service" && ` +
		`action.lookup("verb") == "reload" && ` +
		`subject.user == "pgsteer") { return polkit.Result.YES; } });`
	if diff := cmp.Diff(rule, got); diff != "" {
		t.Error(diff)
	}
	want(t, "systemd/pgsteer.service", map[string]string{"Service.User": "pgsteer"})
	if !strings.Contains(read(t, "systemd/pgsteer.yaml"), "\n    reload_unit: haproxy.service\n") {
		t.Error("pgsteer.yaml reloads another unit than the rule allows")
	}
}

// Where there is a JavaScript engine, the rule is asked too.
func TestPolkitRuleAnswers(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("there is no node to run the rule; its text is checked in TestPolkitRule")
	}
	const ask = `
var rule, polkit = {Result: {YES: "yes"}, addRule: function (f) { rule = f; }};
eval(require("fs").readFileSync(process.argv[1], "utf8"));
var q = function (id, unit, verb, user) {
  return rule({id: id, lookup: function (k) { return {unit: unit, verb: verb}[k]; }}, {user: user}) || "no";
};
var m = "org.freedesktop.systemd1.manage-units";
console.log(JSON.stringify([
  q(m, "haproxy.service", "reload", "pgsteer"), q(m, "haproxy.service", "restart", "pgsteer"),
  q(m, "haproxy.service", "stop", "pgsteer"), q(m, "haproxy.service", "reload", "nobody"),
  q(m, "ssh.service", "reload", "pgsteer"), q("org.freedesktop.systemd1.manage-unit-files", "haproxy.service", "reload", "pgsteer"),
  q(m, undefined, undefined, "pgsteer")]));`
	out, err := exec.CommandContext(t.Context(), node, "-e", ask, examples+"systemd/50-pgsteer.rules").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"yes", "no", "no", "no", "no", "no", "no"}, got); diff != "" {
		t.Error(diff)
	}
}
