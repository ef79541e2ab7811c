package guest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/smallfile"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// If a sandbox resumes from copied memory (of a fork, or of a checkpoint), its programs share
// state with other copies: above all that of random generators. So that programs can notice,
// each run has a generation, like the VMGENID of virtual machines. It is a UUID that is new at
// each boot and in each copy, and stays the same from then on. It is the kernel's boot_id, in
// a file, and at the socket.

// bootID is where Linux shows the id of this boot.
const bootID = "/proc/sys/kernel/random/boot_id"

// generation is what this run is known by.
type generation struct {
	closing chan struct{} // closed by close

	mu      sync.Mutex
	id      string        // guarded by mu
	changed chan struct{} // closed when there is another; guarded by mu
}

func (g *generation) get() (id string, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.id, g.changed
}

func (g *generation) set(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.id = id
	if g.changed != nil {
		close(g.changed)
	}
	g.changed = make(chan struct{})
}

// begin begins the first generation: the kernel's id of this boot. It writes the id to a file
// in dir, unless dir is "".
func (g *generation) begin(dir string) error {
	data, err := smallfile.Read(bootID)
	if err != nil {
		return err
	}
	return g.show(dir, strings.TrimSpace(string(data)))
}

func (g *generation) show(dir, id string) error {
	g.set(id)
	if dir == "" {
		return nil
	}
	return smallfile.Write(filepath.Join(dir, boot.Generation), id+"\n", 0o444)
}

// renew begins another generation in a copy, and tells programs of it.
func (g *generation) renew(dir string) error {
	id := newUUID()
	return errors.Join(setBootID(id), g.show(dir, id))
}

// close ends the calls that wait for another generation.
func (g *generation) close() { close(g.closing) }

// newUUID is a random UUID (version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// setBootID replaces the kernel's boot id, which gVisor restores with the rest of its memory.
// It mounts a file over it that is in no folder. If such a file is mounted already, it is
// written again.
func setBootID(id string) error {
	if err := writeBootID(id); err == nil {
		return nil
	}
	dir, err := os.MkdirTemp("/run", ".cove-boot-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(dir) }() // empty again, or its error was the first
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("make another boot id: %w", err)
	}
	file := filepath.Join(dir, "boot_id")
	err = os.WriteFile(file, []byte(id+"\n"), 0o444)
	if err == nil {
		err = unix.Mount(file, bootID, "", unix.MS_BIND, "")
	}
	return errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
}

// writeBootID overwrites an id that is a mounted file. The kernel's own can't be written.
func writeBootID(id string) error {
	f, err := os.OpenFile(bootID, os.O_WRONLY|syscall.O_NONBLOCK, 0) // a pipe put there has no reader
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if now, err := smallfile.Read(bootID); err != nil || string(now) != id+"\n" {
		return errors.Join(err, errors.New("the boot id is not the one that was written"))
	}
	return nil
}

// getCurrent returns the generation. With ?after=ID it waits until the generation is another
// one than ID.
func (g *generation) getCurrent(w http.ResponseWriter, r *http.Request) error {
	after := r.URL.Query().Get("after")
	for {
		id, changed := g.get()
		if id != after {
			return wire.Respond(w, sprites.Generation{Generation: id})
		}
		select {
		case <-changed:
		case <-g.closing:
			return fail.New("stopping", "The sprite is stopping.", "")
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}
