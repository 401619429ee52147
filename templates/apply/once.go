package apply

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/pgsteer/pgsteer/templates/render"
)

// Text is what a file of a group should hold.
type Text struct {
	Destination string
	Bytes       []byte
}

// Once renders every file of a group, in the group's order. It touches nothing;
// the error lists the faults of all files.
func Once(g Group, v render.View) ([]Text, error) {
	var errs []error
	texts := make([]Text, 0, len(g.Files))
	for _, f := range g.Files {
		b, err := render.Render(f.Template, v)
		if err == nil && f.HAProxy {
			err = render.CheckHAProxy(b, v)
		}
		if err == nil && f.PgBouncer {
			err = render.CheckPgBouncer(b, v)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Destination, err))
		}
		texts = append(texts, Text{Destination: f.Destination, Bytes: b})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return texts, nil
}

// TryCheck runs a group's check command on texts, which are staged beside their
// destinations and removed again; nothing else is touched. The output is what a
// command that refused them printed.
func TryCheck(ctx context.Context, g Group, texts []Text, run Runner) (output string, err error) {
	s, err := g.withDefaults().stage(texts)
	if err != nil {
		return "", err
	}
	defer s.discard()
	return s.check(ctx, run)
}

// Diff says what would change, as a unified diff; "" when nothing would. Present
// files are read through read, such as os.ReadFile; one that does not exist
// counts as empty.
func Diff(texts []Text, read func(path string) ([]byte, error)) (string, error) {
	var out bytes.Buffer
	for _, t := range texts {
		old, err := read(t.Destination)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("comparing with the present file: %w", err)
		}
		out.Write(diff.Diff(t.Destination, old, t.Destination+" (rendered)", t.Bytes))
	}
	return out.String(), nil
}

// hash identifies the texts of a group.
type hash string

// hashOf tells apart a file that is empty and one that does not exist.
func hashOf(texts []Text) hash {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%q %t %d\n", t.Destination, t.Bytes != nil, len(t.Bytes))
		h.Write(t.Bytes)
	}
	return hash(hex.EncodeToString(h.Sum(nil)))
}
