package pgautofailover

import _ "embed"

// Recipe makes the role pgsteer and the views that it reads, as superuser of the
// monitor. The view runs with its owner's rights, so the role needs none on the
// schema pgautofailover, whose functions may start a failover or remove a node.
//
//go:embed recipe.sql
var Recipe string
