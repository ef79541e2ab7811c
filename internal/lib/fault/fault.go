// Package fault names points in the middle of a change of a sprite. A test makes the program
// stop at one of them, and kills what it likes. Then it looks whether the next program finds
// the old state or the new one.
package fault

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable that makes a program stop: POINT=FILE. The first
// process to reach the point makes the file, writes its number into it, and stops itself until
// it is continued or killed.
const Variable = "COVE_FAULT"

// Point is one of Points.
type Point string

// The points of each change, in the order that they are reached in. The first group is the
// server's, when a disk gets another layer. The second is the shim's, when a sandbox moves to
// that layer.
const (
	SealBegun  Point = "seal-begun"  // the store records the next layer
	SealMoved  Point = "seal-moved"  // the sandbox runs on it
	SealStored Point = "seal-stored" // the store records it as the current one

	MovePrepared Point = "move-prepared" // the next disk, and the next sandbox, in which nothing runs
	MoveNoted    Point = "move-noted"    // the shim's file says that it moves
	MovePaused   Point = "move-paused"
	MoveSaved    Point = "move-saved"    // the memory
	MoveMounted  Point = "move-mounted"  // the next disk is mounted
	MoveSwitched Point = "move-switched" // the shim's file names the next one
	MoveKilled   Point = "move-killed"   // the old one
	MoveStarted  Point = "move-started"  // the next sandbox runs, and its guest has not answered yet
	MoveRestored Point = "move-restored" // its guest has answered
	MoveKept     Point = "move-kept"     // the memory, for later

	RestoreStopped  Point = "restore-stopped"
	RestoreSealed   Point = "restore-sealed" // the state before is a checkpoint
	RestoreBegun    Point = "restore-begun"
	RestoreStored   Point = "restore-stored"
	RestoreRecalled Point = "restore-recalled" // the memory is there

	ForkRecalled Point = "fork-recalled"
	ForkStored   Point = "fork-stored"

	PauseNoted   Point = "pause-noted" // the shim's file says that the sandbox is paused
	PauseFrozen  Point = "pause-frozen"
	PauseStored  Point = "pause-stored"
	ResumeThawed Point = "resume-thawed" // the shim's file says that it is paused, still
	ResumeNoted  Point = "resume-noted"

	SleepNoted     Point = "sleep-noted"
	SleepPaused    Point = "sleep-paused"
	SleepSaved     Point = "sleep-saved"
	SleepDescribed Point = "sleep-described" // the image is whole
	SleepKilled    Point = "sleep-killed"
	SleepStored    Point = "sleep-stored"

	WakeTaken      Point = "wake-taken"   // the image has another name
	WakeChecked    Point = "wake-checked" // by the shim
	WakeRestored   Point = "wake-restored"
	WakeIntroduced Point = "wake-introduced" // the guest knows its identity

	PoolBegun   Point = "pool-begun"   // the store has a sprite of the pool
	PoolStarted Point = "pool-started" // its sandbox runs
	TakeStored  Point = "take-stored"  // the store has the sprite that was asked for
	TakeTold    Point = "take-told"    // the guest knows whose it is
	TakeNoted   Point = "take-noted"   // the shim's file says so

	MergeBegun  Point = "merge-begun"
	MergeMade   Point = "merge-made"
	MergeStored Point = "merge-stored"

	ForgetStored  Point = "forget-stored"  // a checkpoint is not in the store any more
	LayerRemoved  Point = "layer-removed"  // and is in the store
	DeleteNoted   Point = "delete-noted"   // a sprite is to go
	DeleteStopped Point = "delete-stopped" // its sandbox
	DeleteRemoved Point = "delete-removed" // its memory
	DeleteStored  Point = "delete-stored"  // its row is gone

	InstallBegun  Point = "install-begun"  // of an agent, for jobs to share: the sprite for it is there
	InstallMade   Point = "install-made"   // its sandbox has ended
	InstallStored Point = "install-stored" // the store has it
	InstallUsed   Point = "install-used"   // the sprite of a job begins with it, and the job is not queued yet

	ImageBlob     Point = "image-blob"     // a blob of an image has its name
	ImageComposed Point = "image-composed" // so has the layer of an image that is made here
	ImageStaged   Point = "image-staged"   // a layer is extracted, in a folder that the next start removes
	ImageLayered  Point = "image-layered"  // it has its name
	ImageStored   Point = "image-stored"   // the store has the image
	ImageMerged   Point = "image-merged"   // its lowest layers are merged, in a folder that the next start removes

	BuildBegun    Point = "build-begun"    // of an image: the sprite of a step is there
	BuildRan      Point = "build-ran"      // its command has ended
	BuildComposed Point = "build-composed" // the image of a step is there
	BuildCached   Point = "build-cached"   // the next build finds it
	BuildNamed    Point = "build-named"    // the last step's image has its names

	EpochStored Point = "epoch-stored" // a change is in the store, and the file beside it does not say so yet
	EpochNoted  Point = "epoch-noted"  // it does
	AsideMoved  Point = "aside-moved"  // something that the store does not know has another place

	SettingsSealed Point = "settings-sealed" // of the jobs of an older store; the file still has what they were
	StoreCopied    Point = "store-copied"    // its rows, to a file beside it
	StoreReplaced  Point = "store-replaced"  // that file is the store
)

// InstallPoints are those of an agent's installation, which does not change anybody's sprite.
var InstallPoints = []Point{InstallBegun, InstallMade, InstallStored, InstallUsed}

// ImagePoints are those of an image on its way into the store.
var ImagePoints = []Point{ImageBlob, ImageStaged, ImageLayered, ImageStored}

// ComposePoints are those of an image that is made here.
var ComposePoints = []Point{ImageBlob, ImageComposed, ImageStaged, ImageLayered, ImageStored}

// BuildPoints are those of an image's build.
var BuildPoints = []Point{BuildBegun, BuildRan, BuildComposed, BuildCached, BuildNamed}

// StorePoints are those of every change of the store, and of a start with an older one.
var StorePoints = []Point{EpochStored, EpochNoted, AsideMoved}

// Points are all others.
var Points = []Point{
	SealBegun, SealMoved, SealStored,
	MovePrepared, MoveNoted, MovePaused, MoveSaved, MoveMounted, MoveSwitched, MoveKilled, MoveStarted, MoveRestored, MoveKept,
	RestoreStopped, RestoreSealed, RestoreBegun, RestoreStored, RestoreRecalled,
	ForkRecalled, ForkStored,
	PauseNoted, PauseFrozen, PauseStored, ResumeThawed, ResumeNoted,
	SleepNoted, SleepPaused, SleepSaved, SleepDescribed, SleepKilled, SleepStored,
	WakeTaken, WakeChecked, WakeRestored, WakeIntroduced,
	PoolBegun, PoolStarted, TakeStored, TakeTold, TakeNoted,
	MergeBegun, MergeMade, MergeStored,
	ForgetStored, LayerRemoved, DeleteNoted, DeleteStopped, DeleteRemoved, DeleteStored,
}

// GuestSilent is not a point but a state. As long as FILE exists, the shim gets no answer from
// the guest of a restored sandbox.
const GuestSilent Point = "guest-silent"

// Holds reports whether a state was asked for, and its file is there.
func Holds(state Point) bool {
	point, file := armed()
	if point != state || file == "" {
		return false
	}
	_, err := os.Lstat(file)
	return err == nil
}

var armed = sync.OnceValues(func() (Point, string) {
	point, file, _ := strings.Cut(os.Getenv(Variable), "=")
	return Point(point), file
})

// Reach stops the program, if it is to stop here.
func Reach(p Point) {
	point, file := armed()
	if point != p || file == "" {
		return
	}
	part := fmt.Sprintf("%s.%d", file, os.Getpid())
	if os.WriteFile(part, fmt.Appendln(nil, os.Getpid()), 0o600) != nil {
		return
	}
	err := os.Link(part, file) // whole, and once
	_ = os.Remove(part)
	if err == nil {
		// To this very thread, which goes no further then. Sent to the process, it may
		// wait for another one to be scheduled.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	}
}
