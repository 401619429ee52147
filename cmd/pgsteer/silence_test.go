package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// frozen is an agent that gives one answer with a first line, and freezes as by
// SIGSTOP: its connections stay open. Unless all is true it still says that it lives.
func frozen(t *testing.T, line string, all bool, thaw <-chan struct{}) running {
	t.Helper()
	var once sync.Once
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := false
		once.Do(func() { first = true })
		if !first && !all {
			w.WriteHeader(http.StatusServiceUnavailable) // also a word
			return
		}
		if first {
			_, _ = io.WriteString(w, line)
			if r.Method == http.MethodGet {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-thaw:
			if first {
				_, _ = io.WriteString(w, `{"result":{}}`+"\n")
			}
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(srv.Close)
	return running{Address: strings.TrimPrefix(srv.URL, "http://"), Silence: 300 * time.Millisecond}
}

// Whoever waits for a frozen agent is told so, and ends with a fault.
func TestAFrozenAgentIsNotWaitedFor(t *testing.T) {
	for name, ask := range map[string]func(context.Context, running) error{
		"wait": func(ctx context.Context, r running) error {
			c := maintenanceWait{Target: "main/n2", asked: asked{running: r}}
			return c.Run(ctx, streams{io.Discard, io.Discard})
		},
		"switchover": func(ctx context.Context, r running) error {
			c := switchoverCmd{Cluster: "main", asked: asked{running: r}}
			return c.Run(ctx, streams{io.Discard, io.Discard})
		},
	} {
		line := `{"text":"it begins"}` + "\n"
		if name == "wait" {
			line = `{"enabled":true,"drain":{"phase":"waiting"}}`
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := ask(ctx, frozen(t, line, true, nil))
		cancel()
		if err == nil || !strings.Contains(err.Error(), "has said nothing for") || name == "switchover" && !strings.Contains(err.Error(), "resumed as soon as it goes on") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An agent that lives may be silent on one answer for as long as it likes.
func TestALivingAgentIsWaitedFor(t *testing.T) {
	thaw := make(chan struct{})
	r := frozen(t, `{"text":"it begins"}`+"\n", false, thaw)
	time.AfterFunc(3*r.Silence, func() { close(thaw) })
	c := switchoverCmd{Cluster: "main", asked: asked{running: r}}
	if err := c.Run(t.Context(), streams{io.Discard, io.Discard}); err != nil {
		t.Error(err)
	}
}
