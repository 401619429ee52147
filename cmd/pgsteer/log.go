package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/pgsteer/pgsteer/agent/config"
)

// newLogger writes lines for people or JSON. Under systemd the journal has the
// time already.
func newLogger(w io.Writer, format config.LogFormat, level *slog.LevelVar) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if os.Getenv("JOURNAL_STREAM") != "" {
		o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	if format == config.FormatJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
