package config

import (
	"strconv"
	"strings"
)

// Maintenance says where the records of what is out are kept, and who may change them.
type Maintenance struct {
	Store MaintenanceStore `yaml:"store"`
	Key   string           `yaml:"key"` // in Consul
	// ViewerTokenFile and AdminTokenFile have a token a line, with or without a name
	// before it; they are read again when they change.
	ViewerTokenFile string `yaml:"viewer_token_file" type:"file"`
	AdminTokenFile  string `yaml:"admin_token_file" type:"file"`
	// ViewerNames and AdminNames are in the certificates that clients of
	// listen.status_tls show.
	ViewerNames []string `yaml:"viewer_names"`
	AdminNames  []string `yaml:"admin_names"`
	// Sessions is how sessions are ended at nodes that are out.
	Sessions EndSessions `yaml:"sessions"`
}

// EndSessions is the role that ends sessions, where operators ask for that.
type EndSessions struct {
	User string `yaml:"user"` // empty: sessions cannot be ended
	// PasswordFile is the role's; empty: that of the probe role, when it is the same
	// one, else none.
	PasswordFile string `yaml:"password_file" type:"file"`
	// KeepRoles are roles whose sessions are neither waited for nor ended.
	KeepRoles []string `yaml:"keep_roles"`
}

// MaintenanceStore says where records are kept.
type MaintenanceStore string

// The choices for MaintenanceStore.
const (
	StoreFile   MaintenanceStore = "file"
	StoreConsul MaintenanceStore = "consul"
)

// check wants a key that Consul can have.
func (m Maintenance) check(s scope) {
	if m.Store == StoreConsul && (m.Key == "" || strings.HasPrefix(m.Key, "/") || strings.HasSuffix(m.Key, "/")) {
		s.fault("key", "key %s is no key of Consul's store: it needs a name, without a slash before or behind it", quote(m.Key))
	}
	if e := m.Sessions; e.User == "" && e.PasswordFile+strings.Join(e.KeepRoles, "") != "" {
		s.in("sessions").fault("user", "user is missing: without a role that may end sessions nothing beside it has an effect")
	}
	if e := m.Sessions; e.User+e.PasswordFile+strings.Join(e.KeepRoles, "") != "" && !m.hasAdmin(s) {
		s.faultOf("sessions", "sessions has no effect: nobody may ask this agent to end any, since it has no admin; set admin_token_file beside it, or admin_names with listen.status_tls, or drop sessions")
	}
	for i, role := range m.Sessions.KeepRoles {
		if strings.TrimSpace(role) == "" {
			s.in("sessions").in("keep_roles").fault(strconv.Itoa(i), "a role in keep_roles is empty")
		}
	}
}

// hasAdmin reports whether somebody may change anything, or is meant to.
func (m Maintenance) hasAdmin(s scope) bool {
	for _, key := range []string{"admin_token_file", "admin_names"} {
		if p := s.in(key).at; s.d.unsound[p] || !s.d.legible(p) {
			return true
		}
	}
	return m.AdminTokenFile != "" || len(m.AdminNames) > 0
}

// checkNames refuses names in certificates that nobody asks for.
func (c *Config) checkNames(s scope) {
	for key, names := range map[string][]string{"viewer_names": c.Maintenance.ViewerNames, "admin_names": c.Maintenance.AdminNames} {
		if len(names) > 0 && c.Listen.StatusTLS.ClientCAFile == "" && s.d.legible("listen\x00status_tls\x00client_ca_file") {
			s.faultOf(key, "%s has no effect without listen.status_tls.client_ca_file: clients then show no certificate that counts", key)
		}
		for i, name := range names {
			if name == "" {
				s.in(key).fault(strconv.Itoa(i), "a name in %s is empty", key)
			}
		}
	}
}
