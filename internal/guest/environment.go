package guest

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/boot"
)

// environmentFile is a JSON object with variables for every command in the sprite. They
// override those that the sprite was created with. Root in the sprite may write the file; a
// change holds for commands that are started later. The file is a part of the disk.
type environmentFile struct {
	mu    sync.Mutex
	at    time.Time // of the file that was read, with its number
	inode uint64
	known map[string]string
}

// read returns the variables, or none if there is no such file, or it is something else. The
// map is not changed afterwards.
func (e *environmentFile) read(dir string) map[string]string {
	if dir == "" {
		return nil
	}
	name := filepath.Join(dir, boot.Environment)
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > wire.MaxJSON {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var inode uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	if e.known != nil && info.ModTime().Equal(e.at) && inode == e.inode {
		return e.known
	}
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	known := map[string]string{}
	if json.NewDecoder(io.LimitReader(f, wire.MaxJSON)).Decode(&known) != nil {
		return nil
	}
	maps.DeleteFunc(known, func(key, value string) bool { return !plainVariable(key, value) })
	e.at, e.inode, e.known = info.ModTime(), inode, known
	return known
}

// plainVariable reports whether a process can be given such a variable.
func plainVariable(key, value string) bool {
	return key != "" && !strings.ContainsAny(key, "=\x00") && !strings.ContainsRune(value, 0)
}
