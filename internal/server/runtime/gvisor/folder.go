package gvisor

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/kernel"
)

// folder is the server's data folder: where it has what belongs to sandboxes.
type folder string

// runs holds the folders of sandboxes.
func (f folder) runs() string { return filepath.Join(string(f), "run") }

// run is the folder of a sprite's sandboxes: of their shims, their logs and their state.
func (f folder) run(id string) string { return filepath.Join(f.runs(), id) }

// logs are the files of a log about a sprite's sandboxes, the oldest first. LogSandbox is what the
// shim and runsc say, what the guest printed, and what gVisor's kernel reported when it crashed.
func (f folder) logs(id string, of sprite.Log) []string {
	var names []string
	switch of {
	case sprite.LogRefused:
		names = []string{shim.RefusedLog + shim.OldSuffix, shim.RefusedLog}
	case sprite.LogConnections:
		names = []string{shim.ConnectedLog + shim.OldSuffix, shim.ConnectedLog}
	case sprite.LogRequests:
		names = []string{shim.RequestLog + shim.OldSuffix, shim.RequestLog}
	case sprite.LogMemory:
		names = []string{shim.MemoryLog + shim.OldSuffix, shim.MemoryLog}
	case sprite.LogSandbox:
		names = []string{"shim.log" + shim.OldSuffix, "shim.log", "guest.log", "runsc.log", kernel.Kept, kernel.Log}
	}
	for i, name := range names {
		names[i] = filepath.Join(f.run(id), name)
	}
	return names
}

// bases holds what disks lie on.
func (f folder) bases() string { return filepath.Join(string(f), base.Folder) }

// guard is the empty folder of layers.Overlay.Guard.
func (f folder) guard() string { return filepath.Join(f.bases(), "empty") }

// oldDisks is where disks were before there were layers.
const oldDisks = "sprites"

// layers holds the folders of layers.
func (f folder) layers() string { return filepath.Join(string(f), "layers") }

// layer is the folder of a layer. For each mount of a disk it has MOUNT/upper, and
// MOUNT/work for the kernel's use while the layer is written.
func (f folder) layer(layer string) string {
	dir := filepath.Join(f.layers(), layer)
	if old := filepath.Join(string(f), oldDisks, layer, "disk"); exists(old) {
		return old
	}
	return dir
}

// imports holds layers on their way in.
func (f folder) imports() string { return filepath.Join(string(f), "imports") }

// image is the folder of the memory that a sleeping sprite has. It is used once: it is renamed
// before, because afterwards the disk goes on without it.
func (f folder) image(id string) string { return filepath.Join(string(f), "images", id) }

// warm reports whether a sprite's memory is kept.
func (f folder) warm(id string) bool { return exists(filepath.Join(f.image(id), shim.ImageFile)) }

// memory is the folder of a memory that is kept.
func (f folder) memory(name string) (string, error) {
	if _, err := hex.DecodeString(name); err != nil || len(name) != 16 {
		return "", fmt.Errorf("bad name of a memory %q", name)
	}
	return filepath.Join(string(f), "memories", name), nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
