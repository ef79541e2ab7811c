package sprite

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// The codes of this package's errors.
const (
	CodeNotFound     = "not_found"
	CodeForbidden    = "forbidden"
	CodeNameTaken    = "name_taken"
	CodeBadName      = "bad_name"
	CodeBadRequest   = "bad_request"
	CodeTooMuch      = "too_much"      // more than the machine has
	CodeJobRunning   = "job_running"   // a job uses the sprite
	CodeUnpulledWork = "unpulled_work" // a job's commits are only in the sprite
	CodeDeleting     = "being_deleted"
	CodeRunningLimit = "concurrent_sprite_limit_exceeded"
	CodeBootFailed   = "boot_failed"
	CodeUnavailable  = "unavailable" // shutting down

	CodeNotAvailable     = "not_available"  // this server's runtime can't
	CodePolicyChanged    = "policy_changed" // since the revision that the caller has read
	CodeSpriteChanged    = "sprite_changed" // likewise, its labels or its rules for checkpoints
	CodeInUse            = "in_use"
	CodeDamaged          = "damaged"  // files of a checkpoint are not what they were
	CodeRejected         = "rejected" // an archive with something in it that must not be
	CodeNoSpace          = "no_space"
	CodeDiskFaulty       = "disk_faulty"
	CodeDiskLimit        = "disk_limit"        // the sprite takes all of its own part of the disk
	CodePathTooLong      = "path_too_long"     // of a file in a sprite, for what was asked
	CodeDiskFull         = "disk_full"         // the server's disk has less than its reserve, and the sprite takes from it
	CodeActiveCheckpoint = "active_checkpoint" // the sprite goes on from it

	CodeDeletedOpen = "deleted_files_open" // more of them than can be saved
	CodeNetworks    = "own_networks"       // of programs, which can't be saved
	CodeOccupied    = "sprite_elsewhere"   // another container has its sandbox

	CodeImageNotFound = "image_not_found"
	CodeImageBad      = "image_bad" // no disk can lie on it
	CodeHostBase      = "host_base" // of a sprite that has no image
)

// Hints of what to do about the server's disk.
const (
	freeSome   = "free some space, and try again; see how full it is: cove doctor"
	repairDisk = "on the server's machine, see why (dmesg), make the disk writable again (mount -o remount,rw), and restart the server"
)

// DiskError is an error with a code that tells users why the server's disk failed. It is
// nil if err has another cause. It leaves out details such as file paths: they belong in
// the log.
func DiskError(err error) *fail.Error {
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return fail.Newf(CodeNoSpace, freeSome, "the disk of the server is full")
	case errors.Is(err, store.ErrDisk) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EIO):
		return fail.Newf(CodeDiskFaulty, repairDisk, "the disk of the server's data folder is read-only or faulty")
	}
	return nil
}

// endAndRemove is the hint for a full disk that always helps. It ends the programs first: a
// program that fills the disk has its file open, so removing the file alone frees nothing.
func endAndRemove(name string) string {
	return fmt.Sprintf("end its programs, and delete some of its files: cove restart %[1]s; cove exec -s %[1]s -- rm FILE", name)
}

// closeSome is the hint where deleted files are too large.
const closeSome = "end the programs that have them open, and try again; to find them, as root in the sprite: ls -l /proc/[0-9]*/fd | grep deleted"

// endNetworks is the hint for a sprite whose programs have networks of their own.
const endNetworks = "end these programs, and try again; to end all of them: cove restart %[1]s; to end Docker's, stop its service: cove service stop -s %[1]s docker --grace 30s"

// pathTooLong says it of an error that is that.
func pathTooLong(err error) error {
	if errors.Is(err, layers.ErrPathTooLong) {
		return fail.Newf(CodePathTooLong, "move or remove it in the sprite, and try again", "a file in the sprite prevents this: %v", err)
	}
	return err
}

// occupied is the error for a caller if err is an ErrOccupied; otherwise it is nil.
func occupied(name string, err error) *fail.Error {
	if !errors.Is(err, ErrOccupied) {
		return nil
	}
	return &fail.Error{
		Code: CodeOccupied, Message: fmt.Sprintf("sprite %s was left as it is: %s", name, strings.TrimPrefix(err.Error(), ErrOccupied.Error()+": ")),
		Hint: "end it there: stop that container; or stop the server here (cove server stop), and run there: cove restart " + name,
	}
}

// elsewhere is an error if a sandbox of a sprite runs where the runtime can't look after it.
func elsewhere(r Runtime, row store.Sprite) error {
	err := r.Occupied(row.ID)
	if e := occupied(row.Name, err); e != nil {
		return e
	}
	return err
}
