package pgautofailover

import (
	"strings"
	"testing"
)

// TestRecipeFor: what is there already is left out, and other roles are quoted.
func TestRecipeFor(t *testing.T) {
	if whole := RecipeFor("pgsteer", false, false); !strings.HasSuffix(Recipe, whole) || !strings.HasPrefix(whole, "CREATE ROLE pgsteer LOGIN") {
		t.Errorf("got %s", whole)
	}
	views := RecipeFor("a\"b", true, false)
	if !strings.HasPrefix(views, "CREATE SCHEMA pgsteer;\n") || strings.Count(views, "CREATE VIEW") != 2 || strings.Count(views, ` TO "a""b";`) != 2 {
		t.Errorf("got %s", views)
	}
	if grants := RecipeFor("pgsteer", true, true); grants != "GRANT USAGE ON SCHEMA pgsteer TO pgsteer;\nGRANT SELECT ON ALL TABLES IN SCHEMA pgsteer TO pgsteer;\n" {
		t.Errorf("got %s", grants)
	}
}
