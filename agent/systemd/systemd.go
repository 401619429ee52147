// Package systemd tells the service manager how the agent fares, for units of
// Type=notify and Type=notify-reload, and asks it for units.
//
// Guarantees: without $NOTIFY_SOCKET nothing is sent and nothing fails. A
// message that cannot be sent is logged and forgotten; it never stops the agent.
package systemd

import (
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notifier speaks to the service manager. The zero value is ready.
type Notifier struct {
	Logger *slog.Logger // nil: nothing is logged
}

// Ready says that the start, or a reload, is over.
func (n Notifier) Ready(status string) { n.send(daemon.SdNotifyReady + "\n" + line(status)) }

// Reloading says that the configuration is being read again. Ready must follow,
// whatever came of it. The manager compares the stamp with its own clock, which
// is how Type=notify-reload knows that its SIGHUP was the cause.
func (n Notifier) Reloading() {
	n.send(daemon.SdNotifyReloading + "\n" + strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"))
}

// Stopping says that the agent ends.
func (n Notifier) Stopping() { n.send(daemon.SdNotifyStopping) }

// Status is the line that `systemctl status` shows.
func (n Notifier) Status(text string) { n.send(line(text)) }

// Alive feeds the watchdog: a unit with WatchdogSec= that does not hear it for that
// long is restarted.
func (n Notifier) Alive() { n.send(daemon.SdNotifyWatchdog) }

// AliveEvery is how often Alive is due, a third of the unit's WatchdogSec=, so that
// two may be late. Zero: the manager keeps no watch.
func (n Notifier) AliveEvery() time.Duration {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil && n.Logger != nil {
		n.Logger.Warn("the manager's watchdog is not fed", "err", err)
	}
	return every / 3
}

// line keeps a text from becoming a second assignment.
func line(text string) string { return "STATUS=" + strings.Join(strings.Fields(text), " ") }

func (n Notifier) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil && n.Logger != nil {
		n.Logger.Warn("systemd cannot be told how the agent fares; the agent goes on", "state", state, "err", err)
	}
}
