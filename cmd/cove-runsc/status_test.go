package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gvisor.dev/gvisor/runsc/container"
)

// TestSwapStatus: a pause and a resume leave a container's file as long as it was. So they
// give no room back that another program could take on a full disk. If they can't change a
// file like that, or if a step fails, they leave the file alone.
func TestSwapStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a_sandbox:a.state")
	text, err := json.Marshal(container.Container{ID: "a", Status: container.Running})
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("it failed")
	for _, test := range []struct {
		from, to string
		did      error
		want     error
		status   container.Status
	}{
		{running, paused, failed, failed, container.Running},
		{paused, running, nil, errNoStatus, container.Running},
		{running, paused, nil, nil, container.Paused},
		{running, paused, nil, errNoStatus, container.Paused},
		{paused, running, nil, nil, container.Running},
	} {
		if err := swapStatus(path, test.from, test.to, func() error { return test.did }); !errors.Is(err, test.want) {
			t.Errorf("%s to %s: got %v, want %v", test.from, test.to, err, test.want)
		}
		var c struct{ Status container.Status }
		got, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(got, &c)
		}
		if err != nil || c.Status != test.status || len(got) != len(text) {
			t.Errorf("%s to %s: status %q of %d bytes, %v, want %q of %d", test.from, test.to, c.Status, len(got), err, test.status, len(text))
		}
	}
	if is, err := os.Stat(path); err != nil || !os.SameFile(was, is) {
		t.Errorf("the file is another one: %v", err)
	}
}
