package sprites

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// home is what a relative path is relative to.
const home = "/home/sprite"

// Files of a sprite are named by absolute paths, or by paths relative to the home of
// the sprite's user. An error is an *fs.PathError. With errors.Is, it is
// fs.ErrNotExist, fs.ErrExist or fs.ErrPermission. With errors.As, it is an *Error,
// whose Code is the system's name for the error, such as "ENOTEMPTY".

// absolute is the file's name as the sprite sees it.
func absolute(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(home, name)
}

// fileQuery is the query that says which file.
func fileQuery(name string) url.Values {
	if path.IsAbs(name) {
		return url.Values{"path": {name}, "workingDir": {"/"}}
	}
	return url.Values{"path": {name}, "workingDir": {home}}
}

// pathError makes the error of a file call.
func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e.StatusCode == http.StatusNotFound && e.Code == "" &&
		!strings.Contains(strings.ToLower(e.Message), "sprite") {
		e.Code = "ENOENT" // some servers send no code; but an unknown sprite is no missing file
	}
	if e, ok := errors.AsType[*Error](err); ok {
		e.Message = strings.TrimPrefix(e.Message, absolute(name)+": ") // the error begins with it
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// fileCall makes a call of the /fs family whose answer is JSON.
func (s *Sprite) fileCall(ctx context.Context, method, verb string, r Request, out any) error {
	r.Method, r.Path, r.Retry = method, s.path("fs", verb), true
	return s.client.Call(ctx, r, out)
}

// Stat describes a file, a symbolic link itself. It is one call to a cove server.
func (s *Sprite) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	info, err := s.stat(ctx, name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return info, nil
}

func (s *Sprite) stat(ctx context.Context, name string) (fileInfo, error) {
	query := fileQuery(name)
	query.Set("stat", "true")
	var list ListFiles
	if err := s.fileCall(ctx, http.MethodGet, "list", Request{Query: query}, &list); err != nil {
		return fileInfo{}, err
	}
	want := absolute(name)
	if len(list.Entries) == 1 && path.Clean(list.Entries[0].Path) == want {
		return newFileInfo(list.Entries[0]), nil
	}
	// The server has listed a folder. Its parent knows it.
	if want == "/" {
		return newFileInfo(Entry{Name: "/", Path: "/", Type: "directory", Mode: "0755", IsDir: true}), nil
	}
	entries, err := s.list(ctx, path.Dir(want))
	if err != nil {
		return fileInfo{}, err
	}
	for _, e := range entries {
		if e.Name == path.Base(want) {
			return newFileInfo(e), nil
		}
	}
	return fileInfo{}, fs.ErrNotExist
}

// ReadDir lists a folder, sorted by name.
func (s *Sprite) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	entries, err := s.list(ctx, name)
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	list := make([]fs.DirEntry, 0, len(entries))
	for _, e := range entries {
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.Contains(e.Name, "/") {
			return nil, pathError("readdir", name, fmt.Errorf("the server listed %q", e.Name))
		}
		list = append(list, fs.FileInfoToDirEntry(newFileInfo(e)))
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return list, nil
}

func (s *Sprite) list(ctx context.Context, name string) ([]Entry, error) {
	var list ListFiles
	err := s.fileCall(ctx, http.MethodGet, "list", Request{Query: fileQuery(name)}, &list)
	return list.Entries, err
}

// Remove deletes a file or an empty folder; with recursive a folder with all
// that is in it.
func (s *Sprite) Remove(ctx context.Context, name string, recursive bool) error {
	query := fileQuery(name)
	query.Set("recursive", strconv.FormatBool(recursive))
	body := struct { // servers differ in where they look
		Path       string `json:"path"`
		WorkingDir string `json:"workingDir"`
		Recursive  bool   `json:"recursive"`
	}{name, query.Get("workingDir"), recursive}
	return pathError("remove", name, s.fileCall(ctx, http.MethodDelete, "delete", Request{Query: query, JSON: body}, nil))
}

// transfer is the body of rename and copy.
type transfer struct {
	Source     string `json:"source"`
	Dest       string `json:"dest"`
	WorkingDir string `json:"workingDir"`
	Recursive  bool   `json:"recursive,omitempty"`
}

// Rename moves a file or folder, over an existing file if there is one.
func (s *Sprite) Rename(ctx context.Context, from, to string) error {
	in := transfer{Source: absolute(from), Dest: absolute(to), WorkingDir: "/"}
	return pathError("rename", from, s.fileCall(ctx, http.MethodPost, "rename", Request{JSON: in}, nil))
}

// Copy copies a file, or a folder with all that is in it, inside the sprite.
func (s *Sprite) Copy(ctx context.Context, from, to string) error {
	in := transfer{Source: absolute(from), Dest: absolute(to), WorkingDir: "/", Recursive: true}
	return pathError("copy", from, s.fileCall(ctx, http.MethodPost, "copy", Request{JSON: in}, nil))
}

// Chmod sets a file's permission bits, and setuid, setgid and sticky.
func (s *Sprite) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	in := struct {
		Path       string `json:"path"`
		WorkingDir string `json:"workingDir"`
		Mode       string `json:"mode"`
	}{absolute(name), "/", octal(mode)}
	return pathError("chmod", name, s.fileCall(ctx, http.MethodPost, "chmod", Request{JSON: in}, nil))
}

// MkdirAll makes a folder and those above it; one that exists is no error. A mode
// other than 0 is given to a new folder, not to those above. The protocol has no
// such call: a file is written into the folder and deleted again.
func (s *Sprite) MkdirAll(ctx context.Context, name string, mode fs.FileMode) error {
	info, err := s.stat(ctx, name)
	if err == nil && info.IsDir() {
		return nil
	}
	if err != nil && !errors.Is(pathError("", "", err), fs.ErrNotExist) {
		return pathError("mkdir", name, err)
	}
	keep := path.Join(absolute(name), ".keep-"+rand.Text())
	if err := s.WriteFile(ctx, keep, nil, WriteOptions{}); err != nil {
		return pathError("mkdir", name, unwrapPath(err))
	}
	if err := s.Remove(ctx, keep, false); err != nil {
		return pathError("mkdir", name, unwrapPath(err))
	}
	if mode != 0 {
		return s.Chmod(ctx, name, mode)
	}
	return nil
}

// unwrapPath takes the name of another file off an error.
func unwrapPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// ReadFile reads a whole file into memory.
func (s *Sprite) ReadFile(ctx context.Context, name string) ([]byte, error) {
	f, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(f)
}

// WriteOptions say how a file is written. The zero value is a good one.
type WriteOptions struct {
	Mode   fs.FileMode // 0: 0644
	AsRoot bool        // not as the sprite's user
	Size   int64       // of the new content, if it is known; the write fails if it has another size

	// IfMatch is the ETag of the File that will be replaced. If the file has changed since,
	// nothing is written, and the error is an *Error with the status 412. Empty: whatever there
	// is. A server that is not cove may ignore it.
	IfMatch string

	// IfNew writes nothing if there is a file, or a link; the error is then one as that of IfMatch.
	IfNew bool
}

// query is the query of a write.
func (o WriteOptions) query(name string) url.Values {
	q := fileQuery(name)
	q.Set("mkdirParents", "true")
	mode := o.Mode
	if mode == 0 {
		mode = 0o644
	}
	q.Set("mode", octal(mode))
	if o.AsRoot {
		q.Set("asRoot", "true")
	}
	return q
}

// WriteFile makes or replaces a file with what r gives, streaming; nil is
// nothing. Folders above it are made. When it fails the old file is as it was,
// unless nothing but the server's answer was lost. It may return, with an error,
// while a Read of r is still going on.
func (s *Sprite) WriteFile(ctx context.Context, name string, r io.Reader, opts WriteOptions) error {
	size := opts.Size
	var body io.Reader
	switch r := r.(type) {
	case nil:
		body = http.NoBody
	case *os.File:
		if size == 0 {
			size = fileRest(r)
		}
		body = io.NopCloser(r) // net/http knows this one, and lets the kernel copy
	case interface{ Len() int }: // bytes.Reader and its like
		if size == 0 {
			size = int64(r.Len())
		}
		body = io.NopCloser(r.(io.Reader))
	default:
		body = io.NopCloser(r)
	}
	result, err := s.put(ctx, name, body, size, opts)
	if err == nil && size > 0 {
		err = result.check(size)
	}
	return pathError("write", name, err)
}

// put is the call that writes a file.
func (s *Sprite) put(ctx context.Context, name string, body io.Reader, size int64, opts WriteOptions) (WriteResult, error) {
	var result WriteResult
	header := http.Header{}
	if opts.IfMatch != "" {
		header.Set("If-Match", opts.IfMatch)
	}
	if opts.IfNew {
		header.Set("If-None-Match", "*")
	}
	err := s.client.Call(ctx, Request{
		Header: header,
		Method: http.MethodPut,
		Path:   s.path("fs", "write"),
		Query:  opts.query(name),
		Body:   body,
		Size:   size,
	}, &result)
	return result, err
}

// check compares what was sent with what the server says it wrote, if it does.
func (r WriteResult) check(sent int64) error {
	if r.Path != "" && r.Size != sent {
		return fmt.Errorf("the server wrote %d bytes of %d", r.Size, sent)
	}
	return nil
}

// fileRest is how much of a regular file is left to read, or 0.
func fileRest(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return max(0, info.Size()-at)
}

// octal is the protocol's text of a mode.
func octal(mode fs.FileMode) string {
	bits := uint32(mode.Perm())
	for _, b := range specialBits {
		if mode&b.mode != 0 {
			bits |= b.bit
		}
	}
	return fmt.Sprintf("%04o", bits)
}

var specialBits = []struct {
	mode fs.FileMode
	bit  uint32
}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}}

// fileInfo is an Entry as an fs.FileInfo; Sys returns the Entry.
type fileInfo struct {
	entry Entry
	mode  fs.FileMode
}

func newFileInfo(e Entry) fileInfo {
	bits, err := strconv.ParseUint(e.Mode, 8, 32)
	if err != nil {
		bits = 0
	}
	mode := fs.FileMode(bits & 0o777)
	for _, b := range specialBits {
		if uint32(bits)&b.bit != 0 {
			mode |= b.mode
		}
	}
	switch {
	case e.Type == "symlink":
		mode |= fs.ModeSymlink
	case e.IsDir || e.Type == "directory":
		mode |= fs.ModeDir
	case e.Type != "file" && e.Type != "":
		mode |= fs.ModeIrregular
	}
	return fileInfo{e, mode}
}

func (i fileInfo) Name() string       { return i.entry.Name }
func (i fileInfo) Size() int64        { return i.entry.Size }
func (i fileInfo) Mode() fs.FileMode  { return i.mode }
func (i fileInfo) ModTime() time.Time { return i.entry.ModTime }
func (i fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i fileInfo) Sys() any           { return i.entry }
