package patroni

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// trouble is why a question has no usable answer.
type trouble struct {
	class topology.FailureClass
	hung  bool // the deadline passed, so the question may still occupy a thread there
	err   error
}

func contentTrouble(err error) *trouble { return &trouble{class: topology.FailContent, err: err} }

// judgeError sorts the error of a request.
func judgeError(err error, after time.Duration) *trouble {
	t := &trouble{class: topology.FailStore, err: err}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		t.err = u.Err // without the address, which the text has already
	}
	switch class := watchers.TransportClass(err); {
	case class == topology.FailTimeout:
		return &trouble{class: class, hung: true, err: fmt.Errorf("no answer within %v", after)}
	case class != "":
		t.class = class
	case strings.Contains(err.Error(), "malformed HTTP"):
		t.class = topology.FailContent
	}
	return t
}

// complaint is one endpoint's trouble, for the failure's text.
type complaint struct {
	who string // member and address
	*trouble
}

// telling ranks classes by what they tell an operator, when members fail in
// different ways.
func telling(c topology.FailureClass) int {
	order := []topology.FailureClass{
		topology.FailLocal, topology.FailTLS, topology.FailDenied, topology.FailName, topology.FailContent,
		topology.FailStore, topology.FailRefused, topology.FailReset, topology.FailUnreachable, topology.FailTimeout,
	}
	if i := slices.Index(order, c); i >= 0 {
		return i
	}
	return len(order)
}

// failure words a round without a proof. Once a member has given its word, what
// is missing is the proof, whatever else failed.
func (e evidence) failure(cluster, why string) *topology.Failure {
	f := &topology.Failure{Class: topology.FailStore}
	parts := make([]string, 0, len(e.complaints)+1)
	if why != "" {
		parts = append(parts, why)
	}
	for _, c := range e.complaints {
		parts = append(parts, fmt.Sprintf("%s: %v", c.who, c.err))
	}
	if len(e.words) == 0 && len(e.complaints) > 0 {
		f.Class = slices.MinFunc(e.complaints, func(a, b complaint) int { return cmp.Compare(telling(a.class), telling(b.class)) }).class
	}
	f.Text = fmt.Sprintf("asking Patroni's members for the leader of %s: %s; asking again within 10 s", cluster, strings.Join(parts, "; "))
	return f
}
