package config

import "reflect"

// FileUse is a file that the configuration names and that must be readable.
type FileUse struct {
	Key  string // such as password_file
	Path string
}

// Files lists the files that the configuration names, in the order of the keys.
func (c *Config) Files() []FileUse { return filesOf(reflect.ValueOf(c).Elem()) }

func filesOf(v reflect.Value) []FileUse {
	var files []FileUse
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			files = append(files, filesOf(v.Index(i))...)
		}
	}
	if v.Kind() != reflect.Struct {
		return files
	}
	for _, f := range keyedFields(v.Type()) {
		field := v.Field(f.index)
		if f.kind == kindFile && field.Kind() == reflect.String && field.String() != "" {
			files = append(files, FileUse{f.key, field.String()})
			continue
		}
		files = append(files, filesOf(field)...)
	}
	return files
}
