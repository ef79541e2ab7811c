package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// reflinkProbe is how many bytes are copied to see how long that takes.
const reflinkProbe = 16 << 20

// reflink says whether the data folder's file system shares the blocks of copied files. If
// it does not, reflink says what a copy costs. An overlay copies a file that is open for
// writing at a checkpoint, or is written after it.
func (d *doctor) reflink() check {
	c := check{Name: "reflink", Level: levelOK, Detail: "the data folder's file system shares the blocks of copies"}
	shared, took, err := probeReflink(existingParent(d.data))
	if err != nil {
		return check{c.Name, levelWarn, err.Error(), ""}
	}
	if !shared {
		c.Detail = fmt.Sprintf("none: a file of 1 GiB that is written after a checkpoint, or open for writing at one, is copied first, in about %s here; with reflink, at once and without room", roughly(took*(1<<30/reflinkProbe)))
		c.Fix = "none is needed; for large files that change, put the data folder on XFS or btrfs: --data DIR"
	}
	return c
}

// probeReflink reports whether a file in dir can be cloned. If it can't, took is how long
// it takes to copy the file and write it to the disk.
func probeReflink(dir string) (shared bool, took time.Duration, err error) {
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp(dir, ".cove-doctor-")
		if err != nil {
			return false, 0, err
		}
		defer f.Close()
		if err := os.Remove(f.Name()); err != nil {
			return false, 0, err
		}
		files[i] = f
	}
	from, to := files[0], files[1]
	if _, err := from.Write(bytes.Repeat([]byte("cove"), reflinkProbe/4)); err != nil {
		return false, 0, err
	}
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return true, 0, nil
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return false, 0, err
	}
	begin := time.Now()
	if _, err := io.Copy(to, from); err != nil {
		return false, 0, err
	}
	if err := to.Sync(); err != nil {
		return false, 0, err
	}
	return false, time.Since(begin), nil
}

// roughly is a duration of one figure.
func roughly(d time.Duration) string {
	if d < time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
