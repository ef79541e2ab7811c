package gitwork_test

import (
	"fmt"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
)

func TestRemotes(t *testing.T) {
	home(t, "[url \"https://git.example.net/\"]\n\tinsteadOf = ex:\n")
	r := newRepo(t)
	all := func() string {
		t.Helper()
		got, err := r.open().Remotes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(got)
	}
	if got := all(); got != "[]" {
		t.Errorf("without remotes: %s", got)
	}
	for url, want := range map[string]gitwork.Remote{
		"https://Git.Example.org/a/b.git":      {Host: "git.example.org", Port: 443},
		"https://me:secret@a.example.org:8443": {Host: "a.example.org", Port: 8443},
		"http://a.example.org./x":              {Host: "a.example.org", Port: 80},
		"ssh://git@a.example.org/~/x":          {Host: "a.example.org", Port: 22},
		"git@a-b.example.org:a/b.git":          {Host: "a-b.example.org", Port: 22},
		"alias:x":                              {Host: "alias", Port: 22},
		"git://a.example.org/x":                {Host: "a.example.org", Port: 9418},
		"ex:a/b":                               {Host: "git.example.net", Port: 443},
		"/srv/git/a:b":                         {},
		"./a:b":                                {},
		"../sibling":                           {},
		"file:///srv/git":                      {},
		"https://192.168.1.5/x":                {},
		"git@10.0.0.5:x":                       {},
		"git@[fd00::1]:x":                      {},
		"ssh://[fd00::1]:22/x":                 {},
		"http://0x7f000001/x":                  {},
		"http://2130706433/x":                  {},
		"https://*.example.org/x":              {},
		"https://a..example.org/x":             {},
		"https://a.example.org:0/x":            {},
		"https://a.example.org:99999/x":        {},
		"ext::sh -c evil":                      {},
		"a b (fetch):x":                        {},
	} {
		r.git("config", "remote.origin.url", url)
		wanted := "[]"
		if want.Host != "" {
			wanted = fmt.Sprint([]gitwork.Remote{want})
		}
		if got := all(); got != wanted {
			t.Errorf("%s: got %s, want %s", url, got, wanted)
		}
	}
	r.git("config", "remote.origin.url", "https://b.example.org/x")
	r.git("config", "remote.origin.pushurl", "git@b.example.org:x")
	r.git("config", "remote.fork.url", "git@a.example.org:x")
	if got := all(); got != "[{a.example.org 22} {b.example.org 22} {b.example.org 443}]" {
		t.Errorf("of two remotes: %s", got)
	}
}
