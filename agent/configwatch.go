package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/watchers/file"
)

// settleConfig lets an editor or a deployment finish before the file is read.
const settleConfig = 200 * time.Millisecond

// watchConfig reloads when the configuration file's contents have changed since
// they were read last, and have rested. A file that is gone, for a moment or for
// good, changes nothing.
func (a *Agent) watchConfig(ctx context.Context) {
	path, candidate := a.o.File, ""
	file.Follow(ctx, file.FollowOptions{Path: path, Settle: settleConfig, Logger: a.log}, func() (settled bool) {
		now := digest(path)
		switch {
		case now == "" || now == a.tried.Load():
			candidate = ""
			return true
		case now != candidate:
			candidate = now
			return false
		}
		candidate = ""
		a.log.Info("the configuration file has changed", "file", path)
		_ = a.Reload(ctx) // it logs its own outcome
		return true
	})
}

// digest identifies the contents of a file; "" when it cannot be read.
func digest(path string) string {
	b, err := config.ReadFile(path)
	if err != nil {
		return ""
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
