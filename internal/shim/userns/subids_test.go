package userns

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No id that is proposed is another account's.
func TestFree(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  int64 // 0: an error
	}{
		{"nobody has any", nil, 100000},
		{"another has the first", map[string]string{"subuid": "bob:100000:65536\n", "subgid": "bob:100000:65536\n"}, 165536},
		{"another has users' ids only", map[string]string{"subuid": "bob:100000:65536\n"}, 165536},
		{"another has groups' ids only", map[string]string{"subgid": "1007:120000:10\n"}, 120010},
		{"a gap that is wide enough", map[string]string{"subuid": "bob:100000:65536\neve:231072:65536\n"}, 165536},
		{"a gap that is too narrow", map[string]string{"subuid": "bob:100000:65536\neve:231071:65536\n"}, 296607},
		{"not in order, and overlapping", map[string]string{"subuid": "eve:165536:65536\nbob:100000:100000\n", "subgid": "bob:90000:20000\n"}, 231072},
		{"too few of one's own", map[string]string{"subuid": "ada:100000:1000\n"}, 101000},
		{"enough of one kind", map[string]string{"subuid": "bob:100000:65536\nada:300000:65536\n", "subgid": "bob:100000:65536\n"}, 300000},
		{"enough of one kind, by number", map[string]string{"subgid": "1001:400000:165536\n"}, 400000},
		{"enough of one kind, but another has them of the other", map[string]string{"subuid": "ada:100000:65536\n", "subgid": "bob:100000:65536\n"}, 165536},
		{"accounts with such ids", map[string]string{"passwd": "ldap:x:100005:100006::/:/bin/sh\n", "group": "big:x:165541:\n"}, 165542},
		{"login.defs", map[string]string{"login.defs": "# SUB_UID_MIN 5\nSUB_UID_MIN\t 200000\nSUB_GID_MIN 300000 # why\n"}, 300000},
		{"lines that are none", map[string]string{"subuid": "\n# bob\nbob:100000\nbob:x:65536\nbob:100000:-1\nbob:100000:99999999999999999999\n"}, 100000},
		{"no room", map[string]string{"login.defs": "SUB_UID_MAX 231071\n", "subgid": "bob:150000:65536\n"}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range test.files {
				if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			first, last, err := Accounts{Root: root}.Free("ada", "1001")
			if first != test.want || (err != nil) != (test.want == 0) || err == nil && last != first+MinIDs-1 {
				t.Errorf("got %d-%d, %v, want %d", first, last, err, test.want)
			}
		})
	}
}

// An account is found by its number, whatever the environment says, and one that is not
// there by an error that says what to do.
func TestAccount(t *testing.T) {
	t.Setenv("USER", "root")
	if me, err := Account(0); err != nil || me.Username != "root" {
		t.Errorf("0: got %+v, %v", me, err)
	}
	me, err := Account(98765432)
	var none *NoAccountError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "useradd --uid 98765432") {
		t.Errorf("got %+v, %v", me, err)
	}
}
