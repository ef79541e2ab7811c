package build

import "testing"

// TestAllowFlags: a build allows by a flag what cove policy allows for a sprite. A hint that must be
// filled in stays as it is.
func TestAllowFlags(t *testing.T) {
	for hint, want := range map[string]string{
		"203.0.113.80 is reserved; allow it: cove policy allow 203.0.113.80:80":                                              "--allow 203.0.113.80:80",
		"allow it: cove policy allow -s build.1 deb.example.org":                                                             "--allow deb.example.org",
		"a rule denies it; see it: cove policy show -s build.1; allow just this: cove policy allow -s build.1 [fd00::1]:443": "--allow [fd00::1]:443",
		"allow both: cove policy allow a.example 10.0.0.0/8":                                                                 "--allow a.example --allow 10.0.0.0/8",
		"names under local belong to the host's own network: cove policy allow a.local ADDRESS":                              "",
		"open fewer, or keep them": "",
		"":                         "",
	} {
		if got := allowFlags(hint); got != want {
			t.Errorf("%q: got %q, want %q", hint, got, want)
		}
	}
}
