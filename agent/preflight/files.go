package preflight

import (
	"os"
	"path/filepath"
	"strings"
)

// Files are the files of HAProxy's configuration that a command of it names by -f, in
// order: of a folder all that HAProxy would read, and placeholders as they are.
func Files(command []string) (files []string) {
	for i, arg := range command {
		if i == 0 || command[i-1] != "-f" {
			continue
		}
		if info, err := os.Stat(arg); strings.Contains(arg, "{{") || err != nil || !info.IsDir() {
			files = append(files, filepath.Clean(arg))
			continue
		}
		entries, _ := os.ReadDir(arg) // by name; what cannot be read says nothing
		for _, e := range entries {
			if name := e.Name(); strings.HasSuffix(name, ".cfg") && !strings.HasPrefix(name, ".") {
				files = append(files, filepath.Join(arg, name))
			}
		}
	}
	return files
}
