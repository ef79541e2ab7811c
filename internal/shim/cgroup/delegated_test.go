package cgroup

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestDelegated: an ordinary user's sandboxes belong below the highest cgroup that the user
// may write, and only a cgroup without subgroups has to be vacated.
func TestDelegated(t *testing.T) {
	const manager, unit, subgroup = "user.slice/user-7.slice/user@7.service", "app.slice/cove.service", "/" + Leaf
	// group are the files of a cgroup. Those of other users lack some here: root runs this.
	group := func(dir string, own bool, more map[string]string) map[string]string {
		all := map[string]string{"cgroup.type": "domain", "cgroup.controllers": "cpu memory pids"}
		if own {
			maps.Copy(all, map[string]string{"cgroup.procs": "", "cgroup.subtree_control": "memory pids cpu"})
		}
		maps.Copy(all, more)
		out := map[string]string{}
		for name, text := range all {
			out[filepath.Join(dir, name)] = text
		}
		return out
	}
	with := func(groups ...map[string]string) map[string]string {
		all := map[string]string{}
		for _, g := range groups {
			maps.Copy(all, g)
		}
		return all
	}
	above := group("user.slice/user-7.slice", false, map[string]string{"pids.max": "900"}) // limits those below anyway
	scope := manager + "/app.slice/run-1.scope"
	for name, tt := range map[string]struct {
		mounts, cgroup string
		files          map[string]string
		root, parent   string // below Mount
		err            error
	}{
		"a scope": {v2Mounts, scope, with(above, group(manager, true, nil), group(manager+"/app.slice", true, nil), group(scope, true, nil)), manager, "/", nil},
		"a scope with a limit": {v2Mounts, scope, with(above, group(manager, true, nil), group(manager+"/app.slice", true, nil),
			group(scope, true, map[string]string{"memory.max": "4096"})), manager, "/app.slice/run-1.scope", nil},
		"a unit": {v2Mounts, manager + "/" + unit, with(group(manager, true, nil), group(manager+"/app.slice", true, nil),
			group(manager+"/"+unit, true, map[string]string{"memory.max": "4096"})), manager, "/", nil},
		"a unit's subgroup, with a limit": {v2Mounts, manager + "/" + unit + subgroup, with(group(manager, true, nil), group(manager+"/app.slice", true, nil),
			group(manager+"/"+unit, true, map[string]string{"memory.max": "4096"}), group(manager+"/"+unit+subgroup, true, nil)), manager, "/" + unit, nil},
		"the machine's unit, of this user":           {v2Mounts, unit, group(unit, true, nil), "", "", ErrNoSubgroup},
		"the machine's unit, of this user, subgroup": {v2Mounts, unit + subgroup, with(group(unit, true, nil), group(unit+subgroup, true, nil)), unit, "/", nil},
		"a session":                    {v2Mounts, "user.slice/user-7.slice/session-3.scope", with(above, group("user.slice/user-7.slice/session-3.scope", false, nil)), "", "", ErrNotDelegated},
		"a cgroup without systemd":     {v2Mounts, "seven", group("seven", true, nil), "seven", "/", nil},
		"a container's own namespace":  {v2Mounts, "", group("", true, nil), "", "/", nil},
		"a cgroup without controllers": {v2Mounts, "seven", group("seven", true, map[string]string{"cgroup.controllers": "memory pids"}), "", "", errors.New("the controller cpu is not delegated to this user")},
		"v1":                           {v1Mounts, "seven", group("seven", true, nil), "", "", ErrNotDelegated},
	} {
		t.Run(name, func(t *testing.T) {
			p := machine(t, firstPIDs, tt.mounts, "0::/"+tt.cgroup+"\n", tt.files)
			want := Place{Parent: tt.parent}
			if tt.root != "" {
				want.Root = filepath.Join(p.Root, Mount, tt.root)
			}
			if got, err := p.Delegated(); got != want || (err == nil) != (tt.err == nil) || err != nil && err.Error() != tt.err.Error() {
				t.Errorf("got %+v, %v, want %+v, %v", got, err, want, tt.err)
			}
		})
	}
}

// TestTakeDelegated: the cgroup that gets sandboxes hands its controllers down only if they
// were wanted.
func TestTakeDelegated(t *testing.T) {
	p := machine(t, firstPIDs, v2Mounts, "0::/seven\n", map[string]string{
		"seven/cgroup.controllers": "cpu memory pids", "seven/cgroup.procs": "", "seven/cgroup.subtree_control": "",
	})
	control := filepath.Join(p.Root, Mount, "seven/cgroup.subtree_control")
	for _, tt := range []struct {
		find func() (Place, error)
		want string
	}{{p.Delegated, ""}, {p.TakeDelegated, "+memory +pids +cpu"}} {
		if _, err := tt.find(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(control); err != nil || string(got) != tt.want {
			t.Errorf("got %q, %v, want %q", got, err, tt.want)
		}
	}
}
