package gvisor

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/base"
)

// preparer makes what all sandboxes of a server start from, and keeps it up to date.
type preparer struct {
	folder folder
	runsc  string // path of cove-runsc
	guest  string // path of cove-guest
	userNS bool   // see Runtime
	tasks  *tasks
	logger *slog.Logger

	hider base.Hider // its fields are set before prepared is

	mu       sync.Mutex
	prepared *prepared // nil: not yet; guarded by mu

	building sync.Mutex
	built    *built // nil: not yet; guarded by building
}

// built is what all sandboxes of this server run.
type built struct {
	guest string // folder holding cove-guest by digest
	build string // what memory images depend on
}

// prepared is what all sandboxes over the host base start from.
type prepared struct {
	base base.Base
}

// programs makes what all sandboxes run, once. It does not wait for prepare.
func (p *preparer) programs() (built, error) {
	p.building.Lock()
	defer p.building.Unlock()
	if p.built != nil {
		return *p.built, nil
	}
	guest, err := installGuest(p.guest, filepath.Join(string(p.folder), "guest"))
	if err != nil {
		return built{}, err
	}
	build, err := buildOf(p.runsc, guest)
	if err != nil {
		return built{}, err
	}
	p.built = &built{guest: guest, build: build}
	return *p.built, nil
}

// prepare makes what all sandboxes over the host base start from, once; what fails is
// tried again by the next sandbox.
func (p *preparer) prepare() (prepared, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prepared != nil {
		return *p.prepared, nil
	}
	if _, err := p.programs(); err != nil {
		return prepared{}, err
	}
	files := base.Files{User: base.User{Name: boot.User, UID: boot.UID, GID: boot.GID, Home: boot.Home}}
	b, err := files.Prepare(p.folder.bases())
	if err != nil {
		return prepared{}, err
	}
	p.hider.Files, p.hider.Dir, p.hider.Own = files, p.folder.bases(), p.userNS
	if b.Mask, err = p.firstMask(); err != nil {
		return prepared{}, err
	}
	if n := len(b.Mask.Hidden); n > 0 {
		p.logger.Info("hidden from sprites: other users of this machine may not read it", "count", n, "first", "/"+b.Mask.Hidden[0])
	}
	if open := files.Unguarded(); len(open) > 0 {
		p.logger.Warn("a file of this machine's programs that becomes secret stays readable to the sandboxes that run: its folder is an overlay itself (cove doctor says what to do)", "folders", "/"+strings.Join(open, " /"))
	}
	p.prepared = &prepared{base: b}
	return *p.prepared, nil
}

// current is prepare for a mount that is about to be made: it brings the mask up to
// date.
func (p *preparer) current() (prepared, error) {
	asked := time.Now()
	prep, err := p.prepare()
	if err != nil {
		return prepared{}, err
	}
	if prep.base.Mask, err = p.hider.MaskSince(asked); err != nil {
		return prepared{}, err
	}
	if p.hider.Stale() {
		p.tasks.begin(func() {
			if err := p.hider.Renew(); err != nil {
				p.logger.Error("hiding what other users may not read", "err", err)
			}
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepared.base.Mask = prep.base.Mask
	return prep, nil
}

// firstMask is a server's first mask. Those of before are removed, unless there are
// sandboxes, which may have them mounted. Sandboxes over images may start meanwhile: they have
// no mask, and Prune leaves their fittings alone.
func (p *preparer) firstMask() (base.Mask, error) {
	mask, err := p.hider.Mask()
	if err == nil {
		err = makeGuard(p.folder.guard())
	}
	if err != nil {
		return mask, err
	}
	running, err := filepath.Glob(filepath.Join(p.folder.runs(), "*", "sandbox.json"))
	if err != nil || len(running) > 0 {
		return mask, err
	}
	return mask, p.hider.Prune(mask)
}

// makeGuard makes the empty folder of layers.Overlay.Guard, whatever the umask is.
func makeGuard(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// buildOf says what a memory image depends on.
func buildOf(runsc, guest string) (string, error) {
	id, err := contentOf(runsc)
	if err != nil {
		return "", fmt.Errorf("read runsc: %w", err)
	}
	return fmt.Sprintf("runsc %s guest %s cpu %s", id, filepath.Base(guest), processor()), nil
}

// contentOf names what is in a program. The go command writes a digest of a program that it links
// into the program, which spares reading 80 MB. Other files are read.
func contentOf(program string) (string, error) {
	f, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if id := contentID(f); id != "" {
		return id, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// contentID is the last part of a program's build ID, the digest of its content (cmd/go/internal/work,
// buildid.go). It is empty if there is none, or if -ldflags=-buildid= replaced it.
func contentID(program io.ReaderAt) string {
	file, err := elf.NewFile(program)
	if err != nil {
		return ""
	}
	section := file.Section(".note.go.buildid")
	if section == nil || section.Size > 1<<10 {
		return ""
	}
	note, err := section.Data()
	if err != nil || len(note) < 16 || string(note[12:16]) != "Go\x00\x00" { // three numbers are before the name
		return ""
	}
	id := note[16:]
	if size := file.ByteOrder.Uint32(note[4:]); int64(size) < int64(len(id)) {
		id = id[:size]
	}
	parts := strings.Split(string(id), "/")
	if last := parts[len(parts)-1]; len(parts) == 4 && len(last) == 20 {
		return last
	}
	return ""
}

// processor is a digest of what the machine's processor is and can do.
func processor() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part":
			lines = append(lines, strings.TrimSpace(value))
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(lines), "\n")))
	return hex.EncodeToString(sum[:8])
}
