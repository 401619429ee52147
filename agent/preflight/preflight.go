// Package preflight tries beforehand what a reload of HAProxy needs of this host:
// haproxy -c passes while a port is taken or a folder is missing, and the reload then
// fails or, by version, ends every process (haproxy #2784, commit d76fa3753).
//
// Guarantees: a port is bound for a moment and never listened at, so that no client
// can reach this process and no other program is kept from the port; what HAProxy may
// have itself is not tried. What cannot be found out, such as for want of rights, is
// no fault.
package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
)

// Faults says why HAProxy would not take a configuration, given the lines of all its
// files, and the binds that it has or may have already.
func Faults(lines []haproxycfg.Line, had []haproxycfg.Bind) (all []error) {
	for _, l := range lines {
		if folder, ok := Chroot(l); ok && missing(folder) {
			all = append(all, fmt.Errorf("%s: chroot %s: the folder is not there: haproxy -c accepts that, and up to 3.0 a reload then ends every process; make it, or drop the line", l.At(), folder))
		}
	}
	tries := maxTries
	for _, b := range haproxycfg.Binds(lines) {
		if b.Vague || slices.ContainsFunc(had, b.Overlaps) {
			continue
		}
		if err := try(b, &tries); err != nil {
			what := "bind"
			if b.Line.Section == "global" {
				what = "stats socket"
			}
			all = append(all, fmt.Errorf("%s: %s %s: %w", b.Line.At(), what, b.Text, err))
		}
	}
	return all
}

// Chroot returns the folder that a line makes HAProxy's root, if that can be told from
// the line.
func Chroot(l haproxycfg.Line) (folder string, ok bool) {
	if l.Section != "global" || !l.Begins("chroot") || len(l.Words) < 2 || l.Conditional {
		return "", false
	}
	folder = l.Words[1]
	if !filepath.IsAbs(folder) || strings.Contains(folder, "$") {
		return "", false
	}
	return folder, true
}

// maxTries bounds the ports that are tried at once: ranges are cheap to write.
const maxTries = 1 << 16

// try binds what a line binds. A socket's file is not made: only its folder is looked at.
func try(b haproxycfg.Bind, tries *int) error {
	if b.Path != "" {
		if folder := filepath.Dir(b.Path); filepath.IsAbs(folder) && missing(folder) {
			return fmt.Errorf("folder %s is not there: haproxy -c accepts that, and the reload fails; make it, as a RuntimeDirectory of HAProxy's unit if it is below /run", folder)
		}
		return nil
	}
	for port := int(b.First); port <= int(b.Last) && *tries > 0; port++ {
		*tries--
		if err := explain(bind(b, port), port); err != nil {
			return err
		}
	}
	return nil
}

// explain says what an error means to HAProxy; nil: nothing that is known. EACCES, for
// one, is about this process's rights, and HAProxy has others.
func explain(err error, port int) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d: EADDRINUSE, %w: end the program that has it, or choose another port (ss -ltnp 'sport = :%d' names it; HAProxy's own, by a file that is not reloaded yet: reload it)", port, err, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("port %d: EADDRNOTAVAIL, %w: this host has no such address (ip -br address lists its own; net.ipv4.ip_nonlocal_bind is for one that moves)", port, err)
	}
	return nil
}

// hidden are folders that systemd shows empty to a unit with PrivateTmp or
// ProtectHome, as pgsteer's own is: HAProxy may see more there.
var hidden = []string{"/tmp/", "/var/tmp/", "/home/", "/root/", "/run/user/"}

// missing reports whether a folder is not there for anybody.
func missing(folder string) bool {
	if slices.ContainsFunc(hidden, func(h string) bool { return strings.HasPrefix(filepath.Clean(folder)+"/", h) }) {
		return false
	}
	return Missing(folder)
}

// Missing reports whether a folder is not there, as this process sees it. One that it
// may not look at is not missing.
func Missing(folder string) bool {
	info, err := os.Stat(folder)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && !info.IsDir()
}
