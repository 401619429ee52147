package drain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/statefile"
)

// version is the format of the file.
const version = 1

// entry is a drain of this agent, as the file has it.
type entry struct {
	Report Report   `json:"report"`
	Server Identity `json:"server"`
	// Seen is when this agent first saw the records name it; zero: not yet. Balancers
	// have their time from then: a record's own beginning may be long before it holds,
	// or by the clock of another agent.
	Seen time.Time `json:"seen,omitzero"`
	// Doomed are those who are being ended. Named before they are told, so that none
	// is missing from the report, whatever happens in between.
	Doomed []EndedClient `json:"doomed,omitempty"`
}

// ends reports whether it ends anybody, be it only in time.
func (e entry) ends() bool { return e.Report.EndIdle || e.Report.Terminate }

// document is the file.
type document struct {
	Version int     `json:"version"`
	Drains  []entry `json:"drains"`
	// Asked are drains whose record was not seen yet.
	Asked []entry `json:"asked,omitempty"`
}

// load reads the file. One that cannot be used is set aside and reported: without it
// nobody is ended.
func (r *Runner) load() {
	text, err := r.o.Read(r.o.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var d document
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err == nil && d.Version != version {
		err = fmt.Errorf("version %d, this release knows %d", d.Version, version)
	}
	if err != nil {
		aside, failed := statefile.SetAside(r.o.Path)
		r.o.Logger.Error("the drains of before cannot be read: nobody is ended by them any more; the file is set aside",
			"file", r.o.Path, "aside", aside, "err", err, "aside_err", failed)
		return
	}
	for _, e := range d.Drains {
		r.at(e.Report.Target).now = e
	}
	for _, e := range d.Asked {
		at := r.at(e.Report.Target)
		at.next = append(at.next, e)
	}
}

// save writes the file; r.mu is held.
func (r *Runner) save() error {
	d := document{Version: version}
	for _, t := range slices.SortedFunc(maps.Keys(r.drains), func(a, b maintenance.Target) int { return strings.Compare(a.String(), b.String()) }) {
		x := r.drains[t]
		if x.now.Report.ID != "" {
			d.Drains = append(d.Drains, x.now)
		}
		d.Asked = append(d.Asked, x.next...)
	}
	text, err := json.MarshalIndent(d, "", " ")
	if err == nil {
		err = r.o.Write(r.o.Path, text)
	}
	return err
}
