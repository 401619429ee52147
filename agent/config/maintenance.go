package config

import "strings"

// Maintenance says where the records of what is out are kept, and who may change them.
type Maintenance struct {
	Store MaintenanceStore `yaml:"store"`
	Key   string           `yaml:"key"` // in Consul
	// ViewerTokenFile and AdminTokenFile have a token a line, with or without a name
	// before it; they are read again when they change.
	ViewerTokenFile string `yaml:"viewer_token_file" type:"file"`
	AdminTokenFile  string `yaml:"admin_token_file" type:"file"`
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
}
