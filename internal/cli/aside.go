package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// aside says what servers have moved aside because an older store did not know it. It
// reports false if there is nothing.
func (d *doctor) aside() (check, bool) {
	dir := filepath.Join(d.data, "aside")
	lists, err := filepath.Glob(filepath.Join(dir, "*", "moved.jsonl"))
	if err != nil {
		return check{"aside", levelFail, err.Error(), ""}, true
	}
	items, bytes := 0, int64(0)
	for _, list := range lists {
		n, size, err := readAside(list)
		if err != nil {
			return check{"aside", levelWarn, err.Error(), ""}, true
		}
		items, bytes = items+n, bytes+size
	}
	if items == 0 {
		return check{}, false
	}
	return check{"aside", levelWarn,
		fmt.Sprintf("%d layers and memories (%s) that an older cove.db did not know are in %s", items, printable.Bytes(bytes), dir),
		"see what they are in moved.jsonl there; move them back with the newer cove.db, or remove the folder if nobody needs them (in a user namespace: as root)"}, true
}

// readAside counts the items in a list of moved items that still exist, and their bytes.
func readAside(list string) (items int, bytes int64, err error) {
	f, err := os.Open(list)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var moved struct {
			Path  string
			Bytes int64
		}
		if json.Unmarshal(lines.Bytes(), &moved) != nil || moved.Path == "" {
			continue // a server was killed in the middle
		}
		if _, err := os.Lstat(filepath.Join(filepath.Dir(list), moved.Path)); err == nil {
			items, bytes = items+1, bytes+moved.Bytes
		}
	}
	return items, bytes, lines.Err()
}
