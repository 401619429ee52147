package mesh

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/watchers"
)

// failure words the error of a request. What failed is tried again after retryMost at
// the latest.
func failure(o *Options, doing string, err error) error {
	return failed(o.Client.Failure(doing, err, o.Timeout).Text)
}

// failed is the text of a failure.
type failed string

func (f failed) Error() string { return string(f) + "; tried again within " + retryMost.String() }

// cause is the text of an error that is not tried again soon.
func cause(err error) string {
	if f, ok := errors.AsType[failed](err); ok {
		return string(f)
	}
	return err.Error()
}

// errLost says that the lock is another's.
var errLost = errors.New("this agent has lost the lock of the cluster, nothing was written")

// isLockError tells the refusal of a transaction by the check of the lock, its first
// operation.
func isLockError(e *api.TxnError) bool {
	return e.OpIndex == 0 && strings.Contains(e.What, "session")
}

// isHeldError tells the refusal to take a lock that another agent has, or had until a
// moment ago.
func isHeldError(e *api.TxnError) bool {
	return strings.Contains(e.What, "lock is already held") || strings.Contains(e.What, "lock delay")
}

// isDenied tells the refusal of what the token has no right to. One that Consul does not
// know has no rights at all, and is told otherwise.
func isDenied(err error) bool {
	status, ok := errors.AsType[api.StatusError](err)
	return ok && status.Code == http.StatusForbidden && strings.Contains(status.Body, deniedText)
}

// isDeniedError is the same for an operation of a transaction.
func isDeniedError(e *api.TxnError) bool { return strings.Contains(e.What, deniedText) }

const deniedText = "Permission denied"

// refused words why Consul did nothing of a transaction.
func refused(errs api.TxnErrors) error {
	return fmt.Errorf("the transaction is refused: operation %d: %s", errs[0].OpIndex, watchers.Clip(errs[0].What))
}

// isMissing tells the answer of a Consul agent that does not know something.
func isMissing(err error) bool {
	status, ok := errors.AsType[api.StatusError](err)
	return ok && status.Code == http.StatusNotFound
}
