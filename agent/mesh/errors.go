package mesh

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
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

// deniedKey finds the operation on a key that the token may not write, which is all that
// Consul tells of such a transaction; -1: there is none.
func deniedKey(ops api.TxnOps, err error) int {
	status, ok := errors.AsType[api.StatusError](err)
	if !ok || status.Code != http.StatusForbidden {
		return -1
	}
	return slices.IndexFunc(ops, func(op *api.TxnOp) bool { return strings.Contains(status.Body, strconv.Quote(op.KV.Key)) })
}

// refused words why Consul did nothing of a transaction.
func refused(errs api.TxnErrors) error {
	return fmt.Errorf("the transaction is refused: operation %d: %s", errs[0].OpIndex, watchers.Clip(errs[0].What))
}

// isMissing tells the answer of a Consul agent that does not know something.
func isMissing(err error) bool {
	status, ok := errors.AsType[api.StatusError](err)
	return ok && status.Code == http.StatusNotFound
}
