package checkpoints

import (
	"fmt"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// oftenWritten makes a repository whose files were written at the time of its last
// commit. It has more files than gVisor caches.
const oftenWritten = `set -e
cd; git init -q tree; cd tree; git config user.name a; git config user.email a@b
for i in $(seq %d); do echo $i >file$i; done
chmod +x file1; ln file2 linked; mv file3 moved; rm file4; ln -s file5 symbolic; mkdir folder; echo x >folder/x
python3 -c '
import mmap, os
f = os.open("mapped", os.O_RDWR | os.O_CREAT); os.ftruncate(f, 8192); os.stat("mapped")
m = mmap.mmap(f, 8192); m[0:5] = b"later"; m.close()'
git add .; git commit -qm written
printf 'made: file2\n\techo again >>made\n' >../makefile; make -s -f ../makefile
`

// timesOf lists all files' times to the nanosecond, and the files that git and make take
// for changed. For folders it leaves out the change time (%C@): once something below a
// folder is written after a checkpoint, the folder's change time is that moment.
const timesOf = `cd ~/tree
find . -path ./.git -prune -o -type d -printf '%p %T@ %m\n' -o -printf '%p %T@ %C@ %s %m\n' | sort
git diff-files; git status --porcelain; make -s -f ../makefile; cat made; git diff-files`

// TestTimesStay compares the times of files before and after each step that makes gVisor
// forget them.
func TestTimesStay(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	sh := func(script string) string {
		t.Helper()
		return h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", script)
	}
	sh(fmt.Sprintf(oftenWritten, 1500))
	times := sh(timesOf)
	again := func(after string) {
		t.Helper()
		if now := sh(timesOf); now != times {
			t.Errorf("after %s:\n%s", after, e2e.FirstDifference(times, now))
		}
	}
	again("a look at more files than are kept in mind")
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	again("a checkpoint")
	// Written since the checkpoint, and few enough to be in mind at the next one.
	sh("cd ~/tree; for i in $(seq 10 40); do echo more >>file$i; done; git commit -qam more")
	times = sh(timesOf)
	h.Run("", "cove", "checkpoint", "create", "-s", "paint", "--memory")
	again("a checkpoint with memory")
	h.Run("", "cove", "suspend", "paint")
	again("a sleep")
	h.Run("", "cove", "restore", "-s", "paint", "v2")
	again("a restore")
}

// TestSoakTimes: git, which compares times, finds nothing modified in a repository of 10,000
// files. It is asked after ten checkpoints, two hibernations and a restore, with commits
// between them.
func TestSoakTimes(t *testing.T) {
	if !e2e.Soak() { // half a minute of make test's fifteen; TestTimesStay is there
		return
	}
	const files, points = 10_000, 10
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Sh("paint", fmt.Sprintf(oftenWritten, files)+"git add .; git commit -qm made\n")
	clean := func(after string) {
		t.Helper()
		if got := h.Sh("paint", "cd ~/tree; git diff-files; git status --porcelain; git diff-files"); got != "" {
			t.Errorf("after %s git finds modified:\n%.2000s", after, got)
		}
	}
	for i := range points {
		h.Sh("paint", fmt.Sprintf("cd ~/tree; for i in $(seq %d 7 %d); do echo %d >>file$((i + 10)); done; git commit -qam 'more %[3]d'", i, 700, i))
		h.Run("", "cove", "checkpoint", "create", "-s", "paint")
		clean(fmt.Sprintf("checkpoint %d", i+1))
		if i%5 == 2 {
			h.Run("", "cove", "suspend", "paint")
			clean("a hibernation")
		}
	}
	h.Run("", "cove", "restore", "-s", "paint", "v2")
	clean("a restore")
}
