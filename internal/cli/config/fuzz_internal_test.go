package config

import (
	"slices"
	"testing"
)

// FuzzParse: whatever a repository's file says, it sets nothing that only a person may set. Each
// setting in it has a value.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"agent = \"shell\"\ntimeout = \"2h\"\ncpus = 2\n", "include = [\"/\"]\n", "[backends.far]\nurl = \"https://sprites.example.org\"\n",
		"[pull]\nauto = true\nrisky = \"list\"\n", "[[pull.sync]]\nfrom = \"a\"\nto = \"b\"\n", "pull.risky = \"list\"", "dirty = \"include\"\n",
		"backends = {far = {url = \"https://x.example\"}}", "\"pull.risky\" = \"list\"\n", "setup = 1\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, problems := parse(FromRepository, "config.toml", data, nil)
		if len(doc.backends) > 0 || len(doc.trees) > 0 {
			t.Errorf("%q gave backends %v, folders %v", data, doc.backends, doc.trees)
		}
		for key, v := range doc.values {
			set, ok := find(key)
			if !ok || set.personal != "" || set.refuse != nil && set.refuse(v.Text) != "" {
				t.Errorf("%q set %s to %+v", data, key, v)
			}
			if v.From != FromRepository || v.Text == "" && set.kind != folders && set.check("") != nil {
				t.Errorf("%q gave %s the value %+v", data, key, v)
			}
		}
		if slices.ContainsFunc(problems, func(p Problem) bool { return p.Message == "" }) {
			t.Errorf("%q: a problem without a message: %v", data, problems)
		}
	})
}
