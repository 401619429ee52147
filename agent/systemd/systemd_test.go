package systemd

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestWhatTheManagerIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	n := Notifier{}
	for _, c := range []struct {
		tell func()
		want string
	}{
		{func() { n.Ready("2 clusters") }, `^READY=1\nSTATUS=2 clusters$`},
		{n.Reloading, `^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]{5,}$`},
		{n.Stopping, `^STOPPING=1$`},
		{n.Alive, `^WATCHDOG=1$`},
		{func() { n.Status("main: writer n1\nREADY=1") }, `^STATUS=main: writer n1 READY=1$`},
	} {
		c.tell()
		b := make([]byte, 4096)
		_ = l.SetReadDeadline(time.Now().Add(10 * time.Second))
		k, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b[:k]); !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("told %q, want %s", got, c.want)
		}
	}
}

func TestAliveEvery(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"", "", 0},
		{"30000000", "", 10 * time.Second},
		{"30000000", strconv.Itoa(os.Getpid()), 10 * time.Second},
		{"30000000", "1", 0}, // meant for another process
		{"soon", "", 0},
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got := (Notifier{}).AliveEvery(); got != c.want {
			t.Errorf("WATCHDOG_USEC=%s WATCHDOG_PID=%s: every %s, want %s", c.usec, c.pid, got, c.want)
		}
	}
}

func TestWithoutAManagerNothingIsSent(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	var log bytes.Buffer
	Notifier{Logger: slog.New(slog.NewTextHandler(&log, nil))}.Ready("x")
	if log.Len() > 0 {
		t.Errorf("logged %s", &log)
	}
}

func TestAManagerThatIsGoneIsLoggedOnly(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	var log bytes.Buffer
	Notifier{Logger: slog.New(slog.NewTextHandler(&log, nil))}.Stopping()
	if !strings.Contains(log.String(), "STOPPING=1") {
		t.Errorf("logged %q, want the state that was not told", &log)
	}
}
