package sprites_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/cove-dev/cove/sprites"
)

func TestFS(t *testing.T) {
	_, sprite := newMachine(t)
	dir := t.TempDir()
	for name, content := range map[string]string{"a.txt": "hello", "src/main.go": "package main", "src/deep/er/x y%z": "1"} {
		if err := sprite.WriteFile(t.Context(), filepath.Join(dir, name), strings.NewReader(content), sprites.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a.txt", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	tree := sprite.FS(t.Context(), dir)
	if b, err := fs.ReadFile(tree, "link"); string(b) != "hello" || err != nil {
		t.Errorf("through a link: got %q, %v", b, err)
	}
	if info, err := fs.Stat(tree, "link"); err != nil || info.Size() != 5 || info.Name() != "link" || !info.Mode().IsRegular() {
		t.Errorf("stat of a link: got %v, %v", info, err)
	}
	if info, err := sprite.Stat(t.Context(), filepath.Join(dir, "empty")); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		t.Errorf("stat of an empty folder: got %v, %v", info, err)
	}
	if err := os.Remove(filepath.Join(dir, "link")); err != nil { // fstest wants Stat and ReadDir to agree on links
		t.Fatal(err)
	}
	if err := fstest.TestFS(tree, "a.txt", "src/main.go", "src/deep/er/x y%z", "empty"); err != nil {
		t.Error(err)
	}
}

// TestStatOfCove has a server that knows stat=true.
func TestStatOfCove(t *testing.T) {
	requests := 0
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if got, want := r.URL.RequestURI(), "/v1/sprites/paint/fs/list?path=src&stat=true&workingDir=%2Fhome%2Fsprite"; got != want {
			t.Errorf("asked for %s, want %s", got, want)
		}
		fmt.Fprint(w, `{"path":"/home/sprite/src","count":1,"entries":[{"name":"src","path":"/home/sprite/src","type":"directory","mode":"3755","isDir":true,"modTime":"2026-02-03T10:11:12Z"}]}`)
	}))
	info, err := client.Sprite("paint").Stat(t.Context(), "src")
	if err != nil || !info.IsDir() || info.Mode() != fs.ModeDir|fs.ModeSetgid|fs.ModeSticky|0o755 || requests != 1 {
		t.Errorf("got %v, %v after %d requests", info, err, requests)
	}
}

func TestFileErrors(t *testing.T) {
	_, sprite := newMachine(t)
	dir, ctx := t.TempDir(), t.Context()
	file := filepath.Join(dir, "file")
	if err := sprite.WriteFile(ctx, file, strings.NewReader("x"), sprites.WriteOptions{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	_, openMissing := sprite.Open(ctx, file+"2")
	_, statMissing := sprite.Stat(ctx, file+"2")
	_, openFolder := sprite.Open(ctx, dir)
	tests := []struct {
		name string
		err  error
		is   error
		code string
	}{
		{"open a missing file", openMissing, fs.ErrNotExist, "ENOENT"},
		{"stat a missing file", statMissing, fs.ErrNotExist, ""},
		{"open a folder", openFolder, nil, "EISDIR"},
		{"remove a missing file", sprite.Remove(ctx, file+"2", true), fs.ErrNotExist, "ENOENT"},
		{"remove a full folder", sprite.Remove(ctx, dir, false), nil, "ENOTEMPTY"},
		{"make a folder of a file", sprite.MkdirAll(ctx, file, 0), nil, "ENOTDIR"},
	}
	for _, tt := range tests {
		var path *fs.PathError
		var e *sprites.Error
		if !errors.As(tt.err, &path) || tt.is != nil && !errors.Is(tt.err, tt.is) {
			t.Errorf("%s: got %#v", tt.name, tt.err)
		} else if tt.code != "" && (!errors.As(tt.err, &e) || e.Code != tt.code) {
			t.Errorf("%s: got %v, want code %s", tt.name, tt.err, tt.code)
		}
	}

	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":"sprite not found"}`)
	}))
	if _, err := client.Sprite("paint").Open(ctx, "x"); errors.Is(err, fs.ErrNotExist) || !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("a missing sprite passes for a missing file: %v", err)
	}
}

func TestMkdirAll(t *testing.T) {
	_, sprite := newMachine(t)
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := sprite.MkdirAll(t.Context(), dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(dir)
	left, _ := os.ReadDir(dir)
	if err != nil || info.Mode().Perm() != 0o750 || len(left) != 0 {
		t.Errorf("got %v, %v, with %v in it", info.Mode(), err, left)
	}
}

func TestFileWriter(t *testing.T) {
	_, sprite := newMachine(t)
	name := filepath.Join(t.TempDir(), "new", "file")
	write := func(ctx context.Context, content string) *sprites.FileWriter {
		w := sprite.Create(ctx, name, 0o755)
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
		return w
	}
	if err := write(t.Context(), "one").Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("got %v, %v", info, err)
	}

	boom := errors.New("boom")
	w := write(t.Context(), "two")
	if err := w.CloseWithError(boom); err != nil {
		t.Errorf("abandoning: %v", err)
	}
	if err := w.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second close: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w = write(ctx, "three")
	cancel()
	if err := w.Close(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
	if err := sprite.WriteFile(t.Context(), name, strings.NewReader("four"), sprites.WriteOptions{Size: 5}); err == nil {
		t.Error("a write shorter than its size succeeded")
	}
	if err := sprite.WriteFile(t.Context(), name, io.MultiReader(strings.NewReader("five"), failing{boom}), sprites.WriteOptions{}); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	if b, err := sprite.ReadFile(t.Context(), name); string(b) != "one" || err != nil {
		t.Errorf("the file is %q, %v; no later write was completed", b, err)
	}

	w = sprite.Create(t.Context(), filepath.Join(name, "x"), 0)
	var err error
	for range 1 << 20 { // the server answers before it has read all
		if _, err = w.Write(make([]byte, 64<<10)); err != nil {
			break
		}
	}
	if e, ok := errors.AsType[*sprites.Error](err); !ok || e.Code != "ENOTDIR" {
		t.Errorf("writing below a file: got %v", err)
	}
	if err := w.Close(); err == nil {
		t.Error("and Close succeeded")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestReadAt(t *testing.T) {
	_, sprite := newMachine(t)
	name := filepath.Join(t.TempDir(), "file")
	content := "0123456789"
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := sprite.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, tt := range []struct {
		off, n int
		want   string
		err    error
	}{{2, 3, "234", nil}, {0, 10, content, nil}, {8, 5, "89", io.EOF}, {10, 1, "", io.EOF}, {20, 1, "", io.EOF}} {
		p := make([]byte, tt.n)
		n, err := f.ReadAt(p, int64(tt.off))
		if string(p[:n]) != tt.want || err != tt.err {
			t.Errorf("%d bytes at %d: got %q, %v", tt.n, tt.off, p[:n], err)
		}
	}
	if b, err := io.ReadAll(f); string(b) != content || err != nil || f.Size() != 10 {
		t.Errorf("got %q, %v", b, err)
	}

	whole := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, content) }))
	f, err = whole.Sprite("paint").Open(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if n, err := f.ReadAt(make([]byte, 3), 2); n != 0 || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a server without ranges: got %d, %v", n, err)
	}
}

// TestCutRead has servers that drop the connection inside a file.
func TestCutRead(t *testing.T) {
	for _, head := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
	} {
		client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, head)
				_ = conn.Close()
			}
		}))
		if b, err := client.Sprite("paint").ReadFile(t.Context(), "x"); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%q: got %q, %v", head, b, err)
		}
	}
}

// TestBigFile copies a file both ways and looks at the heap meanwhile.
func TestBigFile(t *testing.T) {
	_, sprite := newMachine(t)
	dir := t.TempDir()
	const size = 256 << 20
	sent := sha256.New()
	src := io.TeeReader(io.LimitReader(&counter{}, size), sent)

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := sprite.WriteFile(t.Context(), filepath.Join(dir, "big"), src, sprites.WriteOptions{Size: size}); err != nil {
		t.Fatal(err)
	}
	f, err := sprite.Open(t.Context(), filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	got := sha256.New()
	n, err := io.Copy(got, f)
	runtime.ReadMemStats(&after)
	if err != nil || n != size || !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Errorf("%d bytes came back, or others: %v", n, err)
	}
	if grown := int64(after.TotalAlloc - before.TotalAlloc); grown > 16<<20 {
		t.Errorf("copying allocated %d bytes", grown)
	}

	// From a file, which the kernel copies.
	local, err := os.Open(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = local.Close() }()
	if _, err := local.Seek(100<<20, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if err := sprite.WriteFile(t.Context(), filepath.Join(dir, "part"), local, sprites.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "part")); err != nil || info.Size() != 156<<20 {
		t.Errorf("got %v, %v", info, err)
	}
}

// counter gives bytes that differ from block to block.
type counter struct{ n uint64 }

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(c.n >> 16)
		c.n += 257
	}
	return len(p), nil
}

func TestRenameAndCopy(t *testing.T) {
	var got []string
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, r.Method+" "+r.URL.RequestURI()+" "+string(b))
		if strings.HasSuffix(r.URL.Path, "copy") {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(sprites.FileError{Error: "exists", Code: "EEXIST"})
		}
	}))
	sprite := client.Sprite("paint")
	renamed, copied, removed := sprite.Rename(t.Context(), "a", "/b"), sprite.Copy(t.Context(), "/a", "b"), sprite.Remove(t.Context(), "/a b", true)
	want := []string{
		`POST /v1/sprites/paint/fs/rename {"source":"/home/sprite/a","dest":"/b","workingDir":"/"}`,
		`POST /v1/sprites/paint/fs/copy {"source":"/a","dest":"/home/sprite/b","workingDir":"/","recursive":true}`,
		`DELETE /v1/sprites/paint/fs/delete?path=%2Fa+b&recursive=true&workingDir=%2F {"path":"/a b","workingDir":"/","recursive":true}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	if !errors.Is(copied, fs.ErrExist) || errors.Is(copied, syscall.ENOENT) {
		t.Errorf("copy: got %v", copied)
	}
	if renamed != nil || removed != nil {
		t.Errorf("got %v, %v", renamed, removed)
	}
}
