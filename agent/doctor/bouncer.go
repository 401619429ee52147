package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/config"
)

// Console is a login at the admin console of a PgBouncer.
type Console interface {
	// Rows asks for a table (SHOW), and returns each row by the names of its columns.
	Rows(ctx context.Context, show string) ([]map[string]string, error)
	Close()
}

// bouncer is what a login at the console of a PgBouncer has shown.
type bouncer struct {
	config.PgBouncer
	failure error // of the login
	trouble error // of a question

	version   string              // what it calls itself; "": it does not say
	settings  map[string]string   // SHOW CONFIG
	databases []map[string]string // SHOW DATABASES
}

// bouncers logs in to every PgBouncer, and remembers what was seen.
func (x *exam) bouncers(ctx context.Context) []bouncer {
	if x.pgbouncers != nil || x.Console == nil {
		return x.pgbouncers
	}
	for _, b := range x.Config.PgBouncers {
		x.pgbouncers = append(x.pgbouncers, bouncer{PgBouncer: b})
	}
	each(len(x.pgbouncers), func(i int) { x.lookAtBouncer(ctx, &x.pgbouncers[i]) })
	return x.pgbouncers
}

// lookAtBouncer shows and commands nothing.
func (x *exam) lookAtBouncer(ctx context.Context, b *bouncer) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := x.Console(ctx, b.PgBouncer)
	if err != nil {
		b.failure = err
		return
	}
	defer c.Close()
	versions, err := c.Rows(ctx, "SHOW VERSION")
	if len(versions) > 0 {
		b.version = versions[0]["version"]
	}
	var settings []map[string]string
	if err == nil {
		settings, err = c.Rows(ctx, "SHOW CONFIG")
	}
	b.settings = make(map[string]string)
	for _, s := range settings {
		b.settings[s["key"]] = s["value"]
	}
	if err == nil {
		b.databases, err = c.Rows(ctx, "SHOW DATABASES")
	}
	b.trouble = err
}

func (b bouncer) row(level Level, tried string) Result {
	return Result{Subject: b.Name + " " + string(b.Address), Level: level, Tried: tried}
}

func pgBouncers(ctx context.Context, x *exam) []Result {
	var all []Result
	for _, b := range x.bouncers(ctx) {
		r := b.reached()
		all = append(all, r)
		if r.Level != Fail {
			all = append(all, b.more()...)
		}
	}
	return all
}

// reached says whether the console can be used.
func (b bouncer) reached() Result {
	r := b.row(Fail, fmt.Sprintf("log in to its console as %s, SHOW VERSION, SHOW CONFIG, SHOW DATABASES", b.User))
	admins, told := b.settings["admin_users"]
	switch {
	case b.failure != nil:
		r.Found, r.Do = oneLine(b.failure.Error()), b.remedy()
		if told, said := errors.AsType[*pgconn.PgError](b.failure); said {
			r.Found = fmt.Sprintf("the login is refused: %s (SQLSTATE %s)", told.Message, told.Code)
		}
	case b.trouble != nil:
		r.Found, r.Do = oneLine(b.trouble.Error()), "see that address names PgBouncer itself, and what its log says"
	case !told:
		r.Level, r.Found = Warn, "it does not say who its admin_users are"
		r.Do = b.grant()
	case slices.Contains(words(admins), b.User):
		r.Level, r.Found = OK, fmt.Sprintf("%s is one of its admin_users", b.User)
		if b.version != "" {
			r.Found = b.version + "; " + r.Found
		}
	case b.User == "pgbouncer" && strings.Contains(string(b.Address), "/"):
		r.Level, r.Found = Warn, "pgbouncer is not one of its admin_users, and may do all only where it comes from PgBouncer's own user of this host, which cannot be found out"
		r.Do = b.grant()
	default:
		r.Found = fmt.Sprintf("%s may look and do no more: it is not one of admin_users (%s), so that PAUSE, RESUME, RECONNECT and RELOAD are refused", b.User, admins)
		r.Do = b.grant()
	}
	return r
}

func (b bouncer) grant() string {
	return "add " + b.User + " to admin_users in its pgbouncer.ini, and RELOAD it"
}

// remedy says what to do for a login that failed.
func (b bouncer) remedy() string {
	told, said := errors.AsType[*pgconn.PgError](b.failure)
	name, dns := errors.AsType[*net.DNSError](b.failure)
	cert, bad := errors.AsType[*tls.CertificateVerificationError](b.failure)
	switch {
	case said && told.Code == "3D000":
		return "this is another server than PgBouncer: name PgBouncer's own address"
	case said && told.Message == "not allowed":
		return b.grant()
	case said:
		return "see that " + b.User + " is in its auth_file with the password of password_file, and that its auth_hba_file, if there is one, lets it in from here; " + b.grant()
	case dns:
		return "correct the name " + name.Name + ", or the resolver of this host"
	case bad:
		return fmt.Sprintf("compare sslrootcert with its client_tls_cert_file: %v", cert.Err)
	case b.SSLMode != config.SSLPrefer && strings.Contains(b.failure.Error(), "refused TLS"):
		return "client_tls_sslmode in its pgbouncer.ini, or another sslmode than " + string(b.SSLMode)
	case errors.Is(b.failure, fs.ErrPermission):
		return "let this user in: unix_socket_mode and unix_socket_group in its pgbouncer.ini, and then restart it"
	case errors.Is(b.failure, syscall.ECONNREFUSED), errors.Is(b.failure, fs.ErrNotExist):
		return "see that PgBouncer runs, and that unix_socket_dir, listen_addr and listen_port of its pgbouncer.ini are those of address"
	case errors.Is(b.failure, context.DeadlineExceeded):
		return "see that no firewall drops the packets, and that it does not hang"
	default:
		return "see its log, and address, user, password_file and sslmode of PgBouncer " + b.Name
	}
}

// words splits a list of PgBouncer's.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
}

// What pgsteer needs, and was tried with, of PgBouncer: RECONNECT came with 1.9, and
// what each command does was measured with 1.18.
var (
	bouncerOldest = [2]int{1, 9}
	bouncerTried  = [2]int{1, 18}
)

var bouncerVersion = regexp.MustCompile(`([0-9]+)\.([0-9]+)`)

// longRetry is a server_login_retry above which a failover takes as long.
const longRetry = 2 * time.Second

// more are the troubles with which the console can be used.
func (b bouncer) more() []Result {
	var all []Result
	r := b.row(Warn, "SHOW VERSION")
	is := [2]int{}
	found := bouncerVersion.FindStringSubmatch(b.version)
	if found != nil {
		is[0], _ = strconv.Atoi(found[1]) // digits
		is[1], _ = strconv.Atoi(found[2])
	}
	switch {
	case found == nil:
		r.Found = fmt.Sprintf("the version cannot be read from %q", b.version)
		r.Do = "see pgbouncer --version there: 1.9 is needed, and 1.18 was tried"
		all = append(all, r)
	case slices.Compare(is[:], bouncerOldest[:]) < 0:
		r.Level, r.Found, r.Do = Fail, b.version+" has no RECONNECT: it cannot be turned to a new writer", "take 1.18 or later"
		all = append(all, r)
	case slices.Compare(is[:], bouncerTried[:]) < 0:
		r.Found, r.Do = b.version+" is older than 1.18, with which pgsteer was tried", "take 1.18 or later, or try a switchover there before it counts"
		all = append(all, r)
	}
	r = b.row(Warn, "SHOW CONFIG")
	if seconds, err := strconv.ParseFloat(b.settings["server_login_retry"], 64); err == nil && seconds > longRetry.Seconds() {
		r.Found = fmt.Sprintf("server_login_retry is %s s: so long all clients of a database wait after a connection to its server that failed", b.settings["server_login_retry"])
		r.Do = "server_login_retry = 1 in its pgbouncer.ini, and RELOAD it"
		all = append(all, r)
	}
	return all
}

func bouncerDatabases(ctx context.Context, x *exam) []Result {
	var all []Result
	for _, b := range x.bouncers(ctx) {
		if b.failure == nil && b.trouble == nil {
			all = append(all, b.has(bouncerFile(x.Config, b.Name))...)
		}
	}
	return all
}

// bouncerFile is the file that a template writes for a PgBouncer, "" for none.
func bouncerFile(c *config.Config, name string) string {
	for _, t := range c.Templates {
		for _, f := range t.Files {
			if t.PgBouncer == name && f.IsPgBouncer() {
				return f.Destination
			}
		}
	}
	return ""
}

// has says which of the configured databases are there, and take clients. file is a
// template's, "" for none.
func (b bouncer) has(file string) []Result {
	there := make(map[string]map[string]string)
	for _, d := range b.databases {
		there[d["name"]] = d
	}
	var names, missing, paused, disabled []string
	for _, d := range b.Databases {
		row, known := there[d.Name]
		names = append(names, d.Name)
		switch {
		case !known:
			missing = append(missing, d.Name)
		case row["paused"] == "1":
			paused = append(paused, d.Name)
		case row["disabled"] == "1":
			disabled = append(disabled, d.Name)
		}
	}
	const tried = "look in SHOW DATABASES for what pgbouncers.databases names"
	var all []Result
	add := func(level Level, of []string, what, do string) {
		if len(of) > 0 {
			r := b.row(level, tried)
			r.Found, r.Do = what+strings.Join(of, ", "), do
			all = append(all, r)
		}
	}
	do := "name it in [databases] of its pgbouncer.ini, not by \"*\" alone, which makes it known only once it is used; then RELOAD it"
	if file != "" {
		do = "have `%include " + file + "` in its pgbouncer.ini, start the agent, which writes that file, and see PgBouncer's log"
	}
	add(Fail, missing, "it has no database ", do)
	add(Warn, paused, "clients wait, since this is paused: ", "unless somebody is at it, pgsteer pgbouncer resume "+b.Name+" "+strings.Join(paused, " "))
	add(Warn, disabled, "new clients are turned away, since this is disabled: ", "unless somebody is at it, pgsteer pgbouncer enable "+b.Name+" "+strings.Join(disabled, " "))
	if len(all) == 0 {
		add(OK, names, "it has ", "")
	}
	return all
}
