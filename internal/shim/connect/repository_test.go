package connect

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

func TestRepositoryOf(t *testing.T) {
	c := cove.Connector{Name: "forge", Upstream: "https://git.example.org/at", Git: true}
	for _, test := range []struct{ url, path string }{
		{"https://git.example.org/at/team/project.git", "/team/project.git"},
		{"https://git.example.org/at/project", "/project"},
		{"https://git.example.org/atteam/project", ""},
		{"https://git.example.org/team/project", ""},
		{"https://git.example.org:8443/at/project", ""},
		{"http://git.example.org/at/project", ""},
		{"https://git.example.org/at", ""},
	} {
		if path, ok := RepositoryOf(c, test.url); ok != (test.path != "") || ok && path != test.path {
			t.Errorf("%s: got %q, %v; want %q", test.url, path, ok, test.path)
		}
	}
	if _, ok := RepositoryOf(cove.Connector{Upstream: "https://git.example.org/at"}, "https://git.example.org/at/project"); ok {
		t.Error("a connector that is not for git is taken")
	}
	for _, bad := range []string{
		"", "project", "ssh://git@example.org/project", "git@example.org:project", "file:///etc", "https:///project", "https://example.org", "https://example.org/",
		"https://me:canary@example.org/project", "https://canary@example.org/project", "https://example.org/a?b", "https://example.org/a#b", "https://example.org/a?",
		"https://example.org/a/../b", "https://example.org/.git", "https://example.org/a*", "https://example.org/a%2fb", "https://example.org/a b", "https://example.org/a;b", "https://example.org/a//b", "https://example.org/a/",
		"https://example.org/" + strings.Repeat("a", maxRepository),
	} {
		if err := CheckRepository(bad); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

// A grant for one repository lets git read it, and write only if it says so, whatever else
// the connector lets through.
func TestLimit(t *testing.T) {
	read := cove.ConnectorGrant{Git: cove.GitGrant{Repository: "/team/project.git"}}
	write := cove.ConnectorGrant{Git: cove.GitGrant{Repository: "/team/other", Push: true}}
	reads := []string{"/team/project.git/info/refs", "/team/project/info/refs", "/team/project.git/git-upload-pack"}
	writes := []string{"/team/other/git-receive-pack", "/team/other.git/git-receive-pack", "/team/other/git-upload-pack"}
	never := []string{"/team/project.git/git-receive-pack", "/team/project.git/info/lfs/objects/batch", "/team/project.git", "/", "/team/projects/info/refs", "/x/team/project.git/info/refs", "/api/v1/user", "/team/project.git/git-upload-pack/../git-receive-pack", "/team/project.git/%67it-receive-pack"}
	for _, test := range []struct {
		of      Upstream
		grants  []cove.ConnectorGrant
		let     []string
		refused []string
	}{
		{Upstream{}, []cove.ConnectorGrant{read}, reads, append(never, writes...)},
		{Upstream{}, []cove.ConnectorGrant{read, write}, append(writes, reads...), never},
		{Upstream{}, []cove.ConnectorGrant{read, {}}, append(never, reads...), nil},
		{Upstream{Paths: []string{"/team/*"}}, []cove.ConnectorGrant{read}, reads, append(never, writes...)},
		{Upstream{Paths: []string{"*/info/refs"}}, []cove.ConnectorGrant{read}, reads[:2], append(never, reads[2])},
		{Upstream{DenyPaths: []string{"/team/project/*"}}, []cove.ConnectorGrant{read}, reads[:1], append(never, reads[1])},
	} {
		u := test.of
		u.Limit(test.grants)
		for _, p := range test.let {
			if why := u.Allows("POST", p); why != "" {
				t.Errorf("%+v by %+v: %s is refused: %s", test.of, test.grants, p, why)
			}
		}
		for _, p := range test.refused {
			if u.Allows("POST", p) == "" {
				t.Errorf("%+v by %+v: %s is let through", test.of, test.grants, p)
			}
		}
	}
	u := Upstream{Paths: []string{"/else/*"}}
	if u.Limit([]cove.ConnectorGrant{read}); u.Refused == "" || len(u.Paths) > 0 {
		t.Errorf("got %+v: it must serve nothing, and say why", u)
	}
	for _, bad := range []string{"", "team", "/", "/a*", "/a/../b", "/a/%2e"} {
		if CheckGit(cove.GitGrant{Repository: bad}) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
