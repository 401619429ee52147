package pgautofailover

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Recipe makes the role pgsteer and the views that it reads, as superuser of the
// monitor. The view runs with its owner's rights, so the role needs none on the
// schema pgautofailover, whose functions may start a failover or remove a node.
//
//go:embed recipe.sql
var Recipe string

// recipeRole is the role that Recipe makes.
const recipeRole = "pgsteer"

// RecipeFor is the part of Recipe that is missing, for a role of any name: without
// the role, the views or both where they are there already.
func RecipeFor(role string, roleThere, viewsThere bool) string {
	name := quoted(role)
	var b strings.Builder
	for statement := range strings.SplitAfterSeq(Recipe, ";\n") {
		_, body, commented := strings.Cut(statement, "CREATE ROLE "+recipeRole)
		switch {
		case commented && !roleThere:
			b.WriteString("CREATE ROLE " + name + body)
		case commented:
		case strings.HasPrefix(statement, "CREATE ") && viewsThere:
		case strings.HasPrefix(statement, "GRANT "):
			b.WriteString(strings.Replace(statement, " TO "+recipeRole, " TO "+name, 1))
		default:
			b.WriteString(statement)
		}
	}
	return b.String()
}

// LimitFor is the statement that lets a role have so many connections.
func LimitFor(role string, connections int) string {
	return fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT %d;", quoted(role), connections)
}

func quoted(role string) string {
	if role == recipeRole {
		return role
	}
	return pgx.Identifier{role}.Sanitize()
}
