package guest_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/sprites"
)

// The policy is a file that nobody may write, whatever root has put in its place.
func TestShowPolicy(t *testing.T) {
	s := &guest.Server{Dir: t.TempDir()}
	m := start(t, s)
	name := filepath.Join(s.Dir, "policy", "network.json")
	shows := func(want string) {
		t.Helper()
		data, err := os.ReadFile(name)
		m.must(err)
		same(t, "the file", string(data), want+"\n")
		st, err := os.Lstat(name)
		m.must(err)
		same(t, "its mode", st.Mode(), 0o444)
	}
	m.must(s.ShowPolicy(sprites.NetworkPolicy{}))
	shows(`{"rules":[]}`)
	m.must(m.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "agent"}, {Domain: "a.b", Action: "deny"}}}))
	shows(`{"rules":[{"include":"agent"},{"domain":"a.b","action":"deny"}]}`)
	m.must(os.Remove(name), syscall.Mkfifo(name, 0o666))
	m.must(m.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{}))
	shows(`{"rules":[]}`)

	m.must(os.Remove(name), os.MkdirAll(filepath.Join(name, "x"), 0o755))
	if err := m.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{}); err == nil {
		t.Error("a folder was replaced")
	}
	left, err := os.ReadDir(filepath.Dir(name))
	m.must(err)
	same(t, "files", len(left), 1)
}
