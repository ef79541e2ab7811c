package gvisor

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestAdoptAsServerEnds: the server that starts a shim for a running sandbox may end before the
// shim answers. The sandbox goes on.
func TestAdoptAsServerEnds(t *testing.T) {
	need.Root(t)
	rt := &Runtime{Dir: t.TempDir(), Shim: []string{filepath.Join(bin, "cove"), "shim"}, Runsc: filepath.Join(bin, "cove-runsc"), Guest: filepath.Join(bin, "cove-guest")}
	m := sprite.Machine{ID: "00112233aabbccdd", Hostname: "paint", MachineID: strings.Repeat("0", 32), Incarnation: 1, Layers: []string{"1111222233334444"}}
	_, err := rt.Boot(t.Context(), m)
	if err == nil {
		err = rt.Close() // it starts no other shim
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := rt.folder.run(m.ID)
	pid, _, err := shim.Keeper(dir)
	if err == nil {
		err = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := json.Marshal(shim.Config{Dir: dir, Runsc: rt.Runsc, ID: m.ID, Cgroups: rt.cgroups.place(), Adopt: true})
	if err != nil {
		t.Fatal(err)
	}
	answer := adopting(t, rt.Shim, cfg)
	if answer.Error != "" || answer.State == nil {
		t.Fatalf("got %+v", answer)
	}
	client := shim.Client{Dir: dir}
	for range 100 { // long enough for its end to be noticed
		if _, err := client.Status(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if end, err := client.Stop(t.Context(), 0); err != nil || end.Reason != "stopped" {
		t.Errorf("the sandbox has ended before it was stopped: %+v, %v", end, err)
	}
}

// adopting starts a shim as a launcher does, and returns the shim's answer. The shim gets SIGTERM
// while it reads its configuration.
func adopting(t *testing.T, command []string, cfg []byte) (answer shim.Ready) {
	t.Helper()
	in, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var log bytes.Buffer
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = in, &log, &log, []*os.File{outW}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("the shim: %v\n%s", err, &log)
		}
	})
	_ = outW.Close()
	if _, err := inW.Write(cfg[:1]); err != nil {
		t.Fatal(err)
	}
	for {
		left, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
		if err != nil {
			t.Fatal(err)
		}
		if left == 0 { // it has read that, and has a handler for the signal
			break
		}
		<-time.After(time.Millisecond)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := inW.Write(cfg[1:]); err != nil {
		t.Fatal(err)
	}
	_ = inW.Close()
	if err := json.NewDecoder(out).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}
