package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// halves is an archive whose second half comes once more is closed.
type halves struct {
	first, second *bytes.Reader
	more          chan struct{}
}

func newHalves(archive []byte) *halves {
	half := len(archive) / 2
	return &halves{bytes.NewReader(archive[:half]), bytes.NewReader(archive[half:]), make(chan struct{})}
}

func (h *halves) Read(p []byte) (int, error) {
	if n, err := h.first.Read(p); err == nil {
		return n, nil
	}
	<-h.more
	return h.second.Read(p)
}

// unpacked returns how many bytes the imports under way have written.
func (l *limited) unpacked(t *testing.T) (n int64) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(l.Data, "imports"), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // its folders come and go
		t.Fatal(err)
	}
	return n
}

func noSpace(err error) bool {
	e, ok := errors.AsType[*sprites.Error](err)
	return ok && e.Code == "no_space" && e.StatusCode == 507 && e.Hint != ""
}

// TestImportLeavesRoom imports archives of some KB that are 300 MiB unpacked. A token may
// use only its part of the room. Two imports together leave the reserve. An import under
// way ends when the reserve is touched, before a sprite is held.
func TestImportLeavesRoom(t *testing.T) {
	const size, reserve = 300 << 20, 64 << 20
	l := newLimitedOf(t, "1g", "--disk-reserve", "64M")
	l.Run("", "cove", "create", "ci-zeros")
	l.Run("", "cove", "exec", "-s", "ci-zeros", "--", "sh", "-c", "head -c 300M /dev/zero >big")
	archive := []byte(l.Run("", "cove", "export", "ci-zeros"))
	l.Run("", "cove", "rm", "ci-zeros")
	e2e.Await(t, "its layer is gone", func() bool { return l.left(t) > 800<<20 })
	if len(archive) > 1<<20 {
		t.Fatalf("the archive has %d bytes", len(archive))
	}
	owner := l.Client()
	others := *owner.Client
	_, others.Token = l.Token("ci", "--prefix", "ci-")
	begin := func(c *cove.Client, name string, in io.Reader) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := c.Import(context.WithoutCancel(t.Context()), in, sprites.ImportOptions{Name: name})
			ended <- err
		}()
		return ended
	}
	end := func(of string, ended <-chan error) error {
		t.Helper()
		select {
		case err := <-ended:
			return err
		case <-time.After(e2e.LastResort):
			t.Fatalf("%s does not end", of)
			return nil
		}
	}
	free := l.left(t)
	if err := end("a token's import", begin(&cove.Client{Client: &others}, "ci-copy", bytes.NewReader(archive))); !noSpace(err) {
		t.Errorf("a token's import of %d of %d bytes: got %v, want no_space", size, free, err)
	}
	e2e.NoImports(l.Host, t)
	if now := l.left(t); now < free-16<<20 {
		t.Errorf("after it %d bytes are left of %d", now, free)
	}

	// Two imports by the owner: there is room for one and two thirds.
	l.fillDisk(t, l.left(t)-size/3*5-reserve)
	slow := newHalves(archive)
	first := begin(owner, "first", slow)
	e2e.Await(t, "the first is under way", func() bool { return l.unpacked(t) > size/3 })
	if err := end("the second import", begin(owner, "second", bytes.NewReader(archive))); err != nil {
		t.Errorf("the second import: %v", err)
	}
	close(slow.more)
	if err := end("the first import", first); !noSpace(err) {
		t.Errorf("the first import: got %v, want no_space", err)
	}
	e2e.NoImports(l.Host, t)
	if left := l.left(t); left < reserve {
		t.Errorf("%d bytes are left of a reserve of %d", left, reserve)
	}
	l.Run("", "cove", "rm", "second")
	e2e.Await(t, "its layer is gone", func() bool { return l.left(t) > size })

	// Others take part of the reserve while an import is under way.
	slow = newHalves(archive)
	first = begin(owner, "first", slow)
	defer close(slow.more)
	e2e.Await(t, "an import is under way", func() bool { return l.unpacked(t) > size/3 })
	f, err := os.Create(filepath.Join(l.Data, "more"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var n int64
	take := func(more int64) {
		if err := unix.Fallocate(int(f.Fd()), 0, n, more); err != nil {
			t.Fatal(err)
		}
		n += more
	}
	take(l.left(t) - reserve - 4<<20)
	for len(first) == 0 && l.left(t) > reserve/2 {
		take(4 << 20)
		l.writes(t)
	}
	if err := end("an import under way", first); !noSpace(err) {
		t.Errorf("an import under way: got %v, want no_space", err)
	}
	e2e.NoImports(l.Host, t)
	if i := l.Info("neighbour").Cove; i.Held != nil {
		t.Errorf("the neighbour is held: %+v", i.Held)
	}
	l.writes(t)
}

// TestImportAfterGrant: a connector is granted to a label while a token without the verb admin
// imports a sprite with that label. The import neither holds up the grant nor gets the connector.
func TestImportAfterGrant(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	archive := []byte(h.Run("", "cove", "export", "paint"))
	h.Run("", "cove", "connector", "put", "api", "--upstream", "https://api.example", "--header", "X-Key: none")
	owner := h.Client()
	weak := *owner.Client
	_, weak.Token = h.Token("weak", "--all", "--verbs", "read,write,exec")
	begin := func(name, label string) (slow *halves, ended chan error) {
		slow, ended = newHalves(archive), make(chan error, 1)
		go func() {
			_, err := weak.Import(context.WithoutCancel(t.Context()), slow, sprites.ImportOptions{Name: name, Labels: []string{label}})
			ended <- err
		}()
		return slow, ended
	}
	slow, ended := begin("sly", "ci")
	e2e.Await(t, "the import is under way", func() bool {
		staged, err := os.ReadDir(filepath.Join(h.Data, "imports"))
		return err == nil && len(staged) > 0
	})
	h.Run("", "cove", "connector", "grant", "api", "--label", "ci")
	close(slow.more)
	if err := <-ended; !errors.Is(err, sprites.ErrForbidden) || !strings.Contains(err.Error(), "the label ci has a connector") {
		t.Errorf("the import: got %v", err)
	}
	if out, code := h.Try("", "cove", "info", "sly"); code == 0 {
		t.Errorf("there is a sprite: %s", out)
	}
	_, ended = begin("other", "ci")
	if err := <-ended; !errors.Is(err, sprites.ErrForbidden) {
		t.Errorf("an import after the grant: got %v", err)
	}
	if _, err := weak.Import(t.Context(), bytes.NewReader(archive), sprites.ImportOptions{Name: "free", Labels: []string{"free"}}); err != nil {
		t.Errorf("an import with a label that has no grant: got %v", err)
	}
}
