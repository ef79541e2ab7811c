package dockerfile

import (
	"fmt"
	"io/fs"
	"strconv"

	"github.com/tonistiigi/dchapes-mode"
)

// CheckMode refuses a Chmod that ApplyMode does not know.
func CheckMode(chmod string) error {
	_, err := ApplyMode(chmod, 0)
	return err
}

// ApplyMode is the mode that a file gets by a Copy's Chmod, which is octal or symbolic. An octal
// one replaces all bits of the mode.
func ApplyMode(chmod string, was fs.FileMode) (fs.FileMode, error) {
	if n, err := strconv.ParseUint(chmod, 8, 32); err == nil {
		if n > 0o7777 {
			return 0, fmt.Errorf("--chmod=%.100s: a mode is between 0 and 7777", chmod)
		}
		m := was.Type() | fs.FileMode(n&0o777)
		for bit, flag := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
			if n&bit != 0 {
				m |= flag
			}
		}
		return m, nil
	}
	set, err := mode.Parse(chmod)
	if err != nil {
		return 0, fmt.Errorf("--chmod=%.100s is not a mode, such as 755 or u+x", chmod)
	}
	return set.Apply(was), nil
}
