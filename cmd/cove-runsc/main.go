// Command cove-runsc is gVisor's runsc, pinned by this module's go.mod, so that a cove
// installation needs no other sandbox runtime on the machine. It has one more command
// (move) and one more platform (systrap-paused). It saves the content of deleted files in
// one piece, and keeps the times of files. A file of the host's that a sandbox's root
// changes becomes root's. It makes some calls do as Linux does, and notes a pause without
// emptying the container's file. Its system call filters are compiled already.
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

// collectLater delays the first garbage collection of a sentry that starts until it has
// some 16 MB of memory, four times the usual. Most sentries never have as much. Otherwise
// a sentry would collect several times before its programs run. After startTime it
// collects once, and gives back the memory that it does not need. Once a process has
// collected, the usual rule holds.
func collectLater() {
	usual := debug.SetGCPercent(400)
	runtime.AddCleanup(new(*int), func(percent int) { debug.SetGCPercent(percent) }, usual)
	time.AfterFunc(startTime, debug.FreeOSMemory)
}

// startTime is longer than a sandbox takes to start.
const startTime = 10 * time.Second

// verb is the first argument that is not a flag: a flag's value follows its =.
func verb() string {
	for _, arg := range os.Args[1:] {
		if !strings.HasPrefix(arg, "-") {
			return arg
		}
	}
	return ""
}
