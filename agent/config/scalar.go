package config

import (
	"encoding"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The type tags of fields that are plain texts in Go.
const (
	kindPath      = "path"          // made relative to the config's folder
	kindFile      = "file"          // a path that must be readable when the config is loaded
	kindSocket    = "socket"        // a UNIX socket's path or host:port on loopback
	kindUnix      = "listen socket" // a UNIX socket's path, or off
	kindArguments = "arguments"     // of a command; may hold line breaks
	kindPercent   = "percent"       // a whole number from 1 to 100
	kindPort      = "port"          // a whole number from 1 to 65535
)

func isScalar(v reflect.Value) bool {
	if _, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); ok {
		return true
	}
	switch v.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint16, reflect.Uint64, reflect.Float64:
		return true
	default:
		return false
	}
}

// scalar decodes a single value. Texts are taken as they are written, so 012
// and no stay themselves.
func (d *decoder) scalar(p path, n *yaml.Node, v reflect.Value, kind string) {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.fault(p, at(n), "this is %s, not a %s", typeName(v, kind).article(), kindName(n))
	case n.Style&yaml.TaggedStyle != 0:
		d.fault(p, at(n), "YAML tags such as %s have no meaning here", quote(n.Tag))
	case n.Tag == "!!null":
		d.fault(p, at(n), "the value is missing: write %s, or drop the key", typeName(v, kind).article())
	default:
		if err := d.setScalar(n, v, kind); err != nil {
			d.fault(p, at(n), "%v", err)
		}
	}
}

func (d *decoder) setScalar(n *yaml.Node, v reflect.Value, kind string) error {
	s := n.Value
	if allowed := words(v.Interface()); allowed != nil {
		if !slices.Contains(allowed, s) {
			return fmt.Errorf("%s", UnknownWord(s, allowed))
		}
		v.SetString(s)
		return nil
	}
	if most := limits[kind]; most != 0 {
		return setCounted(v, s, most)
	}
	switch x := v.Addr().Interface().(type) {
	case *time.Duration:
		return setDuration(x, s)
	case *topology.Size:
		return setSize(x, s)
	case encoding.TextUnmarshaler:
		return x.UnmarshalText([]byte(s))
	case *bool:
		return setBool(x, s)
	case *int:
		return setInt(x, s)
	}
	if v.Kind() != reflect.String {
		return setNumber(v, s)
	}
	text, err := d.text(n, kind)
	if err == nil {
		v.SetString(text)
	}
	return err
}

// text reads a plain text by its type tag.
func (d *decoder) text(n *yaml.Node, kind string) (string, error) {
	s := n.Value
	for _, r := range s {
		if r < ' ' && (kind != kindArguments || r != '\n' && r != '\t') || r == 0x7f {
			return "", fmt.Errorf("%q holds a control character", s)
		}
	}
	switch {
	case kind == kindUnix && (s == "" || s == SocketOff):
		return s, nil
	case kind == kindUnix:
		return d.unixPath(s)
	case kind == kindSocket:
		return d.socket(s)
	case s != "" && (kind == kindPath || kind == kindFile):
		s = d.resolvePath(s)
		if kind == kindFile {
			d.readable(n, s)
		}
	}
	return s, nil
}

func (d *decoder) resolvePath(s string) string {
	if filepath.IsAbs(s) {
		return filepath.Clean(s)
	}
	return filepath.Join(d.folder, s)
}

// socket reads a HAProxy socket. One over TCP knows no password, so that it
// may be on loopback only.
func (d *decoder) socket(s string) (string, error) {
	if strings.Contains(s, "/") {
		return d.unixPath(s)
	}
	a, err := topology.ParseAddress(s)
	if err != nil {
		return "", fmt.Errorf("%q is neither a path with a slash nor host:port", s)
	}
	if ip, ok := a.IP(); a.Host != "localhost" && (!ok || !ip.IsLoopback()) {
		return "", fmt.Errorf("%q is not on loopback; HAProxy's socket asks for no password, so it may not be reachable from elsewhere", s)
	}
	return a.String(), nil
}

func (d *decoder) unixPath(s string) (string, error) {
	const maxUnixPath = 107 // Linux, unix(7): sun_path with its final zero byte
	s = d.resolvePath(s)
	if len(s) > maxUnixPath {
		return "", fmt.Errorf("socket path %s has %d bytes, at most %d are possible", s, len(s), maxUnixPath)
	}
	return s, nil
}

// longest is above all that is waited for here, and so far from the end of
// time.Duration that no sum of durations can overflow.
const longest = 365 * 24 * time.Hour

func setDuration(dst *time.Duration, s string) error {
	v, err := time.ParseDuration(s)
	if f, bare := strconv.ParseFloat(s, 64); bare == nil {
		if f == 0 {
			return fmt.Errorf("duration %s has no unit, write 0s", quote(s))
		}
		return fmt.Errorf("duration %s has no unit, write %ss or %sms", quote(s), s, s)
	}
	if err != nil {
		return fmt.Errorf("%s is not a duration such as 2s, 800ms, 1m30s", quote(s))
	}
	if v < 0 {
		return fmt.Errorf("duration %s is negative", quote(s))
	}
	if v > longest {
		return fmt.Errorf("duration %s is above a year", quote(s))
	}
	*dst = v
	return nil
}

// setSize refuses a bare number although PostgreSQL reads it as bytes: a limit
// of 64 bytes is never meant.
func setSize(dst *topology.Size, s string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" {
		return fmt.Errorf("size %s has no unit, write %skB, %sMB or %sGB", quote(s), s, s, s)
	}
	return dst.UnmarshalText([]byte(s))
}

func setBool(dst *bool, s string) error {
	switch s {
	case "true":
		*dst = true
	case "false":
		*dst = false
	default:
		return fmt.Errorf("%s is neither true nor false", quote(s))
	}
	return nil
}

// maxCount is far above all that is counted here.
const maxCount = 1_000_000

func setInt(dst *int, s string) error {
	v, err := strconv.Atoi(s)
	if err != nil || v < 0 || v > maxCount || strings.HasPrefix(s, "+") || len(s) > 1 && s[0] == '0' {
		return fmt.Errorf("%s is not a whole number from 0 to %d", quote(s), maxCount)
	}
	*dst = v
	return nil
}

// limits are the highest numbers of the type tags that count from 1.
var limits = map[string]int{kindPercent: 100, kindPort: math.MaxUint16}

func setCounted(v reflect.Value, s string, most int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most || s[0] == '+' || s[0] == '0' {
		return fmt.Errorf("%s is not a whole number from 1 to %d", quote(s), most)
	}
	v.Set(reflect.ValueOf(n).Convert(v.Type()))
	return nil
}

// setNumber sets a number of any other type.
func setNumber(v reflect.Value, s string) (err error) {
	switch v.Kind() {
	case reflect.Float64:
		var f float64
		if f, err = strconv.ParseFloat(s, 64); err != nil {
			return fmt.Errorf("%s is not a number", quote(s))
		}
		v.SetFloat(f)
	case reflect.Int64:
		var i int64
		if i, err = strconv.ParseInt(s, 10, 64); err != nil {
			return fmt.Errorf("%s is not a whole number", quote(s))
		}
		v.SetInt(i)
	default:
		var u uint64
		if u, err = strconv.ParseUint(s, 10, v.Type().Bits()); err != nil {
			return fmt.Errorf("%s is not a whole number from 0 to %d", quote(s), uint64(math.MaxUint64)>>(64-v.Type().Bits()))
		}
		v.SetUint(u)
	}
	return nil
}

// checkHost accepts an empty host, an IP address or a name.
func checkHost(host string) error {
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil && strings.HasPrefix(host, "[") {
		return fmt.Errorf("write the IPv6 address %s without brackets", host)
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		return fmt.Errorf("%s is a host without a port; the ports are those of the pools", quote(host))
	}
	return checkListenHost(host)
}

// typeWord names a type in the manual and in faults.
type typeWord string

const (
	typeText     typeWord = "text"
	typeBool     typeWord = "true, false"
	typeNumber   typeWord = "number"
	typeDuration typeWord = "duration"
	typeSize     typeWord = "size"
	typeAddress  typeWord = "address"
	typeNode     typeWord = "cluster/node"
	typeServer   typeWord = "cluster/pool/node"
	typePool     typeWord = "cluster/pool"
	typeConsole  typeWord = "socket or address"
	typeFileMode typeWord = "file mode"
	typeSelector typeWord = "selector"
)

func typeName(v reflect.Value, kind string) typeWord {
	if allowed := words(v.Interface()); allowed != nil {
		return typeWord(list(allowed))
	}
	switch v.Addr().Interface().(type) {
	case *time.Duration:
		return typeDuration
	case *topology.Size:
		return typeSize
	case *topology.Address, *ListenAddress:
		return typeAddress
	case *NodeRef:
		return typeNode
	case *ServerRef:
		return typeServer
	case *PoolRef:
		return typePool
	case *ConsoleAddress:
		return typeConsole
	case *FileMode, *SocketMode:
		return typeFileMode
	case *topology.Selector:
		return typeSelector
	case *bool:
		return typeBool
	}
	if limits[kind] != 0 {
		return typeWord(kind)
	}
	if v.CanInt() || v.CanUint() || v.CanFloat() {
		return typeNumber
	}
	if v.Kind() == reflect.String && (kind == kindPath || kind == kindFile || kind == kindSocket || kind == kindUnix) {
		return typeWord(kind)
	}
	return typeText
}

// article puts the type into a sentence.
func (t typeWord) article() string {
	switch {
	case strings.Contains(string(t), ","):
		return "one of " + string(t)
	case t == typeAddress:
		return "an address (host:port)"
	case t == typeNode:
		return "a node (cluster/node)"
	case t == typeServer:
		return "a node in a pool (cluster/pool/node)"
	case t == typePool:
		return "a pool (cluster/pool)"
	case t == typeDuration:
		return "a duration such as 2s"
	case t == typeSize:
		return "a size such as 64MB"
	}
	return "a " + string(t)
}

// list writes words with commas.
func list(words []string) string { return strings.Join(words, ", ") }
