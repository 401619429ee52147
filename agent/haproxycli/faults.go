package haproxycli

import "log/slog"

// The versions whose behaviour was measured (2.2, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4).
// Older ones than Oldest are not supported.
var (
	Oldest = V(2, 4, 0)
	Newest = V(3, 4, 0)
)

// Fault is something that a range of versions does wrong, or differently than one
// would think. Distributions take fixes into older versions, which a number does
// not show: a fault says what may be, not what is.
type Fault struct {
	// From is the first version with the fault, Below the first without it.
	From, Below Version
	// Issue is a report or a commit of haproxy/haproxy.
	Issue string
	// What happens, and what to do about it.
	What, Do string
	// Avoided says how pgsteer and its built-in template stay clear of it; empty:
	// they cannot.
	Avoided string
	// Unsafe: it may send sessions to a node that must have none.
	Unsafe bool
}

// Faults is all that is known, oldest first.
var Faults = []Fault{
	{
		Below: V(2, 2, 0), Issue: "", Unsafe: true,
		What: "this version was never tried with pgsteer", Do: "take 2.6 or newer",
	},
	{
		From: V(2, 2, 0), Below: V(2, 4, 0), Issue: "haproxy#1176", Unsafe: true,
		What: "an agent check that says up makes a server UP although its TCP check fails", Do: "take 2.6 or newer",
	},
	{
		From: V(2, 4, 0), Below: V(2, 5, 0), Issue: "haproxy#1302",
		What: "agent checks may crash it, or stop it dead when an answer sets maxconn", Do: "take the newest 2.4, or 2.6 or newer",
	},
	{
		From: V(2, 2, 0), Below: V(2, 7, 0), Issue: "haproxy#1839",
		What: "an agent check without agent-send takes 200 ms longer", Do: "render agent-send",
		Avoided: "every server has agent-send",
	},
	{
		From: V(2, 2, 0), Below: V(2, 7, 0), Issue: "haproxy#1508",
		What: "option pgsql-check takes a server with SCRAM passwords for dead", Do: "use no pgsql-check: it does not know roles either",
		Avoided: "the nodes are asked by pgsteer over SQL",
	},
	{
		From: V(2, 7, 0), Below: V(2, 9, 0), Issue: "commit d76fa3753",
		What: "a reload that cannot bind a port ends the master process, and all service with it", Do: "take the newest version of the branch, which has the fix",
	},
	{
		From: V(2, 2, 0), Below: V(3, 1, 0), Issue: "haproxy#2784",
		What: "a reload into a file whose chroot is missing ends every process, although haproxy -c accepts it", Do: "see to it that the folder of chroot exists",
		Avoided: "the folder is looked for before each reload (templates[].preflight) and by doctor, and a reload that is not confirmed is undone",
	},
	{
		From: V(2, 6, 0), Below: V(3, 2, 0), Issue: "",
		What: "haproxy -c with -W and -S accepts an empty file, as the packaged unit does before a reload", Do: "check files without -S",
		Avoided: "files are checked without -S, and one without the expected proxies is refused",
	},
	{
		From: V(2, 4, 0), Below: V(2, 9, 0), Issue: "haproxy#2298",
		What: "the command del server may crash it while sessions linger", Do: "take the newest version of the branch",
		Avoided: "it is never sent: a server leaves by a reload, and with runtime: true it stands in maintenance until the next one",
	},
	{
		From: V(2, 2, 0), Below: V(3, 1, 0), Issue: "commit b500e84e2",
		What: "shutdown sessions may crash it under load", Do: "take the newest version of the branch, which has the fix",
		Avoided: "it is told once, after the server is out",
	},
	{
		From: V(3, 1, 0), Below: V(3, 4, 0), Issue: "haproxy#3229",
		What: "after one failed reload every further systemctl reload does nothing", Do: "have a master's socket (master_socket)",
		Avoided: "with master_socket a reload counts once a new worker runs, and when none comes the master is asked for it; doctor warns without",
	},
	{
		From: V(3, 3, 0), Below: Version{3, 5, 0, 2}, Issue: "commit 7aec1e6d9",
		What: "a server whose agent says nothing but a weight never comes back after a failed check", Do: "take the newest version of the branch",
		Avoided: "every good answer says up, and the agent stands in default-server",
	},
}

// Known are the faults that a version has. An unknown version has none.
func Known(v Version) []Fault {
	var found []Fault
	for _, f := range Faults {
		if v != (Version{}) && !v.Before(f.From) && v.Before(f.Below) {
			found = append(found, f)
		}
	}
	return found
}

// Warn logs what is known against a version of a running HAProxy and cannot be
// avoided.
func Warn(log *slog.Logger, version string) {
	v, ok := ParseVersion(version)
	if !ok {
		return
	}
	for _, f := range Known(v) {
		if f.Avoided == "" {
			log.Warn("the running HAProxy has a version with a known fault", "version", version, "fault", f.What, "report", f.Issue, "do", f.Do)
		}
	}
	if Newest.Before(Version{Major: v.Major, Minor: v.Minor}) {
		log.Info("the running HAProxy is newer than any that was tried", "version", version, "tried", Newest.String())
	}
}
