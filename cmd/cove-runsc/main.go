// Command cove-runsc is gVisor's runsc, pinned by this module's go.mod, so that
// a cove installation needs no other sandbox runtime on the machine. It has one
// command more, move, and one platform more, systrap-paused, saves the content of
// deleted files in one piece, keeps the times of files, makes files of the host's
// that root changes root's, has some calls do as Linux does, notes a pause
// without emptying the container's file, and has its system call filters ready.
package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

func main() {
	if err := registerPaused(); err != nil {
		util.Fatalf("%v", err)
	}
	switch verb() {
	case moveVerb:
		cli.Run(nil, map[util.SubCommand]string{new(move): ""}, nil)
		return
	case "pause":
		cli.Run(nil, map[util.SubCommand]string{&noted{"pause", pause}: ""}, nil)
		return
	case "resume":
		cli.Run(nil, map[util.SubCommand]string{&noted{"resume", resume}: ""}, nil)
		return
	case "gofer":
		giveFilters()
	case "boot": // the sandbox's process
		giveFilters()
		os.Args = limited(os.Args, cgroup.Process{}.Limits(), runtime.NumCPU())
		boundTasks()
		refuseOverlays()
		collectLater()
		saveDeletedWhole()
		keepTimes()
		readAttributes()
		renameLinks()
		adoptFiles()
		separateLinks()
		seeCalls()
	}
	maincli.Main()
}

// collectLater has a sentry that starts not look for garbage before it has some 16 MB of
// memory, four times the usual, which is more than most ever have: it would do so several
// times until what is in it goes on. Once that is behind it, it does, and gives back what
// it does not need. A process that has looked goes by the usual rule from then on.
func collectLater() {
	usual := debug.SetGCPercent(400)
	runtime.AddCleanup(new(*int), func(percent int) { debug.SetGCPercent(percent) }, usual)
	time.AfterFunc(startTime, debug.FreeOSMemory)
}

// startTime is longer than a sandbox takes to start.
const startTime = 10 * time.Second

// verb is the first argument that is no flag: a flag's value stands behind its =.
func verb() string {
	for _, arg := range os.Args[1:] {
		if !strings.HasPrefix(arg, "-") {
			return arg
		}
	}
	return ""
}
