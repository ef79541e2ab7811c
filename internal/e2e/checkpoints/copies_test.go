package checkpoints

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// drawer is a service that makes a random generator at its start, and draws from it when
// asked to.
const drawer = `
import os, random, signal, time
random.seed(os.urandom(16)); random.random()
def hup(*_): open('/home/sprite/hup-' + os.environ['AS'], 'w').close()
signal.signal(signal.SIGHUP, hup)
open('/home/sprite/began-' + os.environ['AS'], 'a').write('x')
while not os.path.exists('/home/sprite/draw'): time.sleep(0.05)
with open('/home/sprite/drawing-' + os.environ['AS'], 'w') as f: f.write('%032x' % random.getrandbits(128))
os.rename(f.name, f.name.replace('drawing', 'drawn'))
time.sleep(100000)
`

// TestCopiesDiffer: from S: a key that a service makes after a fork is in no other fork.
// Each fork has a boot id of its own. Programs that go on learn of the fork, as their
// service's definition says, or by sprite-env.
func TestCopiesDiffer(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	for name, flags := range map[string][]string{"plain": nil, "none": {"--after-restore", "none"}, "signalled": {"--after-restore", "HUP"}} {
		args := append([]string{"service", "put", "-s", "paint", "--env", "AS=" + name}, flags...)
		h.Run("", "cove", append(args, name, "python3", "-c", drawer)...)
	}
	if _, stderr, code := h.Streams("service", "put", "-s", "paint", "--after-restore", "sometimes", "bad", "true"); code == 0 || !strings.Contains(stderr, "after_restore must be restart, none or a signal") {
		t.Errorf("a bad after_restore: %d, %s", code, stderr)
	}
	sh := func(sprite, script string) string {
		return h.Run("", "cove", "exec", "-s", sprite, "--", "sh", "-c", script)
	}
	e2e.Await(t, "the services", func() bool { return sh("paint", "cat /home/sprite/began-*") == "xxx" })
	sh("paint", "(setsid sprite-env generation --wait >/home/sprite/waiting 2>&1 &); until ls -l /proc/$(pgrep -x sprite-env)/fd 2>/dev/null | grep -q socket:; do sleep 0.05; done")
	_, stderr, code := h.Streams("fork", "paint", "copy", "--count", "2")
	if code != 0 || !strings.Contains(stderr, "repeat the other copy's random numbers") {
		t.Errorf("fork: %d, %s", code, stderr)
	}
	all := []string{"paint", "copy-1", "copy-2"}
	drawn, ids := map[string]map[string]string{}, map[string]string{}
	for _, sprite := range all {
		copied := sprite != "paint"
		began := map[bool]string{false: "xxx", true: "xxxx"}[copied]
		e2e.Await(t, "the services of "+sprite, func() bool { return sh(sprite, "cat /home/sprite/began-*") == began })
		sh(sprite, "touch /home/sprite/draw")
		for _, name := range []string{"plain", "none", "signalled"} {
			e2e.Await(t, "a number in "+sprite, func() bool { return len(sh(sprite, "cat /home/sprite/drawn-"+name+" 2>/dev/null; true")) == 32 })
			if drawn[name] == nil {
				drawn[name] = map[string]string{}
			}
			drawn[name][sh(sprite, "cat /home/sprite/drawn-"+name)] = sprite
		}
		if copied {
			e2e.Await(t, "the signal in "+sprite, func() bool {
				return sh(sprite, "ls /home/sprite/hup-* 2>/dev/null; true") == "/home/sprite/hup-signalled\n"
			})
			e2e.Await(t, "the event in "+sprite, func() bool {
				return sh(sprite, "cat /home/sprite/waiting") == sh(sprite, "cat /proc/sys/kernel/random/boot_id")
			})
		} else if out := sh(sprite, "ls /home/sprite/hup-* 2>/dev/null; cat /home/sprite/waiting"); out != "" {
			t.Errorf("the original was told: %s", out)
		}
		lines := strings.Fields(sh(sprite, "cat /proc/sys/kernel/random/boot_id /.sprite/generation; sprite-env generation"))
		if len(lines) != 3 || len(lines[0]) != 36 || lines[1] != lines[0] || lines[2] != lines[0] || ids[lines[0]] != "" {
			t.Errorf("the ids of %s are %q, and those before %v", sprite, lines, ids)
			continue
		}
		ids[lines[0]] = sprite
	}
	if len(drawn["plain"]) != 3 || len(drawn["none"]) != 1 {
		t.Errorf("the services drew %v", drawn)
	}
	// A sprite that sleeps and wakes does not count as a copy.
	h.Run("", "cove", "suspend", "copy-1")
	if id := strings.TrimSpace(sh("copy-1", "cat /proc/sys/kernel/random/boot_id")); ids[id] != "copy-1" || sh("copy-1", "cat /home/sprite/began-*") != "xxxx" {
		t.Errorf("after its sleep copy-1 has the id %s of %v", id, ids)
	}
}
