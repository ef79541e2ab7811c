// Package files is the filesystem API of the guest. It reads, writes, lists, changes and
// watches files with the rights of the sprite's user, or of root.
package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/cove-dev/cove/internal/guest/users"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// blocks are the buffers that files are streamed through. Explicit reads and writes keep
// net/http from sendfile, which is slow in gVisor.
var blocks = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// maxWatches is how many watches may be open.
const maxWatches = 32

// Server answers the calls of the /fs family. Close it when done.
type Server struct {
	users   *users.Database
	user    string
	workdir string
	watches *wire.Watches
	folders atomic.Int64 // that watches watch

	names sync.Mutex // held while a call looks what has a name and then changes that: of two with one ETag, one succeeds
}

// New makes a Server. Unless a call says otherwise, it acts with the rights of user, and
// relative paths lie in workdir.
func New(db *users.Database, user, workdir string) *Server {
	return &Server{users: db, user: user, workdir: workdir, watches: wire.NewWatches(maxWatches, watchFrame)}
}

// Close ends all watches. There must be no more calls.
func (s *Server) Close() { s.watches.Close() }

// Routes are the calls.
func (s *Server) Routes() wire.Routes {
	return wire.Routes{
		"GET /v1/fs/read":      s.getRead,
		"PUT /v1/fs/write":     s.putWrite,
		"GET /v1/fs/list":      s.getList,
		"GET /v1/fs/watch":     s.getWatch, // upgrade
		"DELETE /v1/fs/delete": s.deleteFile,
		"POST /v1/fs/rename":   s.postRename,
		"POST /v1/fs/copy":     s.postCopy,
		"POST /v1/fs/chmod":    s.postChmod,
		"POST /v1/fs/chown":    s.postChown,
	}
}

// fileCall has the parameters that all calls of the /fs family take. Paths may be relative to
// workingDir. Without asRoot, calls act with the rights of the sprite's user.
type fileCall struct {
	Path       string `json:"path"`
	Source     string `json:"source"`
	Dest       string `json:"dest"`
	WorkingDir string `json:"workingDir"`
	AsRoot     bool   `json:"asRoot"`
	Recursive  *bool  `json:"recursive"`

	user users.User
}

// parse reads the query of a call.
func (s *Server) parse(q url.Values) (*fileCall, error) {
	f := &fileCall{Path: q.Get("path"), WorkingDir: q.Get("workingDir")}
	var err error
	if f.AsRoot, err = wire.Boolean(q, "asRoot", false); err != nil {
		return nil, err
	}
	if text := q.Get("recursive"); text != "" {
		yes, err := wire.Boolean(q, "recursive", false)
		if err != nil {
			return nil, err
		}
		f.Recursive = &yes
	}
	return f, s.complete(f)
}

// complete finds the user and makes the paths absolute.
func (s *Server) complete(f *fileCall) error {
	name := s.user
	if f.AsRoot {
		name = "0"
	}
	var ok bool
	if f.user, ok = s.users.Lookup(name); !ok {
		return fmt.Errorf("there is no user %q", name)
	}
	dir := f.WorkingDir
	if dir == "" {
		dir = s.workdir
	} else if !filepath.IsAbs(dir) {
		dir = s.workdir + "/" + dir
	}
	for _, p := range []*string{&f.Path, &f.Source, &f.Dest} {
		if *p != "" {
			*p = absolute(dir, *p)
		}
	}
	return nil
}

// absolute joins paths as the kernel reads them. If a is a link, "a/.." is the parent of its
// target, so a path with ".." only loses the slashes at its end.
func absolute(dir, name string) string {
	if !strings.HasPrefix(name, "/") {
		name = dir + "/" + name
	}
	if strings.Contains(name, "..") {
		return strings.TrimRight(name, "/")
	}
	return path.Clean(name)
}

// below is the name of a file in a folder, whose own name stays as it is.
func below(dir, name string) string {
	return strings.TrimSuffix(dir, "/") + "/" + name
}

// need complains about a missing path.
func need(name, value string) error {
	if value == "" {
		return &fileError{name, badRequestFile(name + " is missing")}
	}
	return nil
}

func badRequestFile(text string) error {
	return fail.New("EINVAL", text, "")
}

func (f *fileCall) recursive(missing bool) bool {
	if f.Recursive == nil {
		return missing
	}
	return *f.Recursive
}

// do runs fn as the call's user, and gives its error the path.
func (f *fileCall) do(name string, fn func() error) error {
	if err := f.user.Do(fn); err != nil {
		return &fileError{name, err}
	}
	return nil
}

// getRead streams a file, or the bytes from start up to end of it.
func (s *Server) getRead(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	f, err := s.parse(q)
	if err != nil {
		return err
	}
	if err := need("path", f.Path); err != nil {
		return err
	}
	start, err1 := position(q, "start", 0)
	end, err2 := position(q, "end", -1)
	if err := errors.Join(err1, err2); err != nil {
		return &fileError{f.Path, badRequestFile(err.Error())}
	}
	var file *os.File
	var st fs.FileInfo
	err = f.do(f.Path, func() error {
		// Without waiting: a FIFO could block this for ever.
		file, err = os.OpenFile(f.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return err
	}
	defer file.Close()
	if st, err = file.Stat(); err != nil {
		return &fileError{f.Path, err}
	}
	switch {
	case st.IsDir():
		return &fileError{f.Path, syscall.EISDIR}
	case !st.Mode().IsRegular():
		return &fileError{f.Path, badRequestFile("not a regular file")}
	}
	if start > 0 {
		if _, err := file.Seek(start, io.SeekStart); err != nil {
			return &fileError{f.Path, err}
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Cove-Mode", modeText(st.Mode()))
	h.Set("ETag", etag(st))
	h.Set("X-Cove-Mtime", st.ModTime().UTC().Format("2006-01-02T15:04:05.999999999Z07:00"))
	if st.Size() == 0 {
		// Files such as those of /proc don't say how long they are.
		if end < 0 {
			end = 1 << 62
		}
		return sendFile(w, file, max(end-start, 0), false)
	}
	if end < 0 || end > st.Size() {
		end = st.Size()
	}
	size := max(end-start, 0)
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	return sendFile(w, file, size, true)
}

// position reads a byte position of a query.
func position(q url.Values, key string, missing int64) (int64, error) {
	text := q.Get(key)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s must be a byte position, not %q", key, text)
	}
	return n, nil
}

// sendFile streams at most left bytes. If exactly that many were promised, and the file turns
// out shorter, it cuts the connection, so that the caller notices.
func sendFile(w http.ResponseWriter, file *os.File, left int64, exact bool) error {
	block := blocks.Get().(*[256 << 10]byte)
	defer blocks.Put(block)
	for left > 0 {
		n, err := file.Read(block[:min(left, int64(len(block)))])
		if n > 0 {
			left -= int64(n)
			if _, err := w.Write(block[:n]); err != nil {
				return nil // the caller has gone
			}
		}
		if errors.Is(err, io.EOF) && !exact {
			return nil
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	return nil
}

// maxEntries bounds a listing.
const maxEntries = 200_000

// getList lists a folder. The listing of a file is the file; with stat=true, an
// extension, the listing of anything is itself, a link not followed.
func (s *Server) getList(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	f, err := s.parse(q)
	if err != nil {
		return err
	}
	if f.Path == "" {
		f.Path = absolute(s.workdir, cmp.Or(q.Get("workingDir"), "."))
	}
	stat, err := wire.Boolean(q, "stat", false)
	if err != nil {
		return err
	}
	pattern := q.Get("pattern")
	if !doublestar.ValidatePattern(pattern) {
		return &fileError{f.Path, badRequestFile("the pattern can't be read")}
	}
	limit := 0
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return &fileError{f.Path, badRequestFile("limit must be a number from 1 on")}
		}
	}
	list, count := sprites.ListFiles{Path: f.Path, Entries: []sprites.Entry{}}, 0
	err = f.do(f.Path, func() error {
		if stat {
			st, err := os.Lstat(f.Path)
			if err != nil {
				return err
			}
			e := entry(f.Path, st)
			e.ETag = etag(st)
			list.Entries, count = append(list.Entries, e), 1
			return nil
		}
		list.Entries, count, err = listFiles(f.Path, pattern, f.recursive(false), limit)
		return err
	})
	if err != nil {
		return err
	}
	list.Count = count
	return wire.Respond(w, list)
}

// listFiles lists a folder, or a file, and says how many entries there are. A limit other than
// 0 bounds the listed entries, and folders come first.
func listFiles(name, pattern string, recursive bool, limit int) ([]sprites.Entry, int, error) {
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		st, err = os.Lstat(name) // a link to nothing is something
	}
	if err != nil {
		return nil, 0, err
	}
	if !st.IsDir() {
		return []sprites.Entry{entry(name, st)}, 1, nil
	}
	w := &walk{root: name, pattern: pattern, recursive: recursive, limit: limit, entries: []sprites.Entry{}}
	err = w.folder(name)
	return w.entries, w.count, err
}

// walk gathers a listing.
type walk struct {
	root      string
	pattern   string
	recursive bool
	limit     int // 0: none
	entries   []sprites.Entry
	count     int // also of those that are not listed
}

func (w *walk) folder(dir string) error {
	children, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if w.limit > 0 {
		slices.SortStableFunc(children, func(a, b fs.DirEntry) int { return rank(a) - rank(b) })
	}
	for _, d := range children {
		full := below(dir, d.Name())
		if w.limit > 0 && len(w.entries) == w.limit && !w.recursive {
			if w.matches(full) {
				w.count++
			}
			continue
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		} else if err != nil {
			return err
		}
		if w.matches(full) {
			if w.count++; w.limit == 0 || len(w.entries) < w.limit {
				w.entries = append(w.entries, entry(full, st))
			}
			if len(w.entries) > maxEntries {
				return badRequestFile(fmt.Sprintf("more than %d entries: list less at once", maxEntries))
			}
		}
		if w.recursive && st.IsDir() {
			err := w.folder(full)
			if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// rank puts folders before all else.
func rank(d fs.DirEntry) int {
	if d.IsDir() {
		return 0
	}
	return 1
}

// matches matches a pattern with a slash against the path below the listed
// folder, and one without against the name.
func (w *walk) matches(full string) bool {
	if w.pattern == "" {
		return true
	}
	name := path.Base(full)
	if strings.Contains(w.pattern, "/") {
		name = strings.TrimPrefix(strings.TrimPrefix(full, w.root), "/")
	}
	return doublestar.MatchUnvalidated(w.pattern, name)
}

func entry(full string, st fs.FileInfo) sprites.Entry {
	e := sprites.Entry{
		Name:    path.Base(full),
		Path:    full,
		Type:    "other",
		Size:    st.Size(),
		Mode:    modeText(st.Mode()),
		ModTime: st.ModTime().UTC(),
		IsDir:   st.IsDir(),
	}
	switch st.Mode().Type() {
	case 0:
		e.Type = "file"
	case fs.ModeDir:
		e.Type = "directory"
	case fs.ModeSymlink:
		e.Type = "symlink"
		e.Target, _ = os.Readlink(full) // empty when it has just gone
	}
	return e
}

// modeText is a mode's permission bits, with setuid, setgid and sticky, as four
// octal digits.
func modeText(m fs.FileMode) string {
	return fmt.Sprintf("%04o", unixMode(m))
}

func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, b := range specialBits {
		if m&b.mode != 0 {
			bits |= b.unix
		}
	}
	return bits
}

var specialBits = []struct {
	mode fs.FileMode
	unix uint32
}{{fs.ModeSetuid, syscall.S_ISUID}, {fs.ModeSetgid, syscall.S_ISGID}, {fs.ModeSticky, syscall.S_ISVTX}}

// parseMode reads permission bits in octal.
func parseMode(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o7777 {
		return 0, badRequestFile(fmt.Sprintf("mode must be octal, such as 0644, not %q", text))
	}
	return uint32(n), nil
}

// deleteFile removes a file or an empty folder; with recursive, a folder and all in it. The
// answer counts the deleted files, and names at most maxDeleted of them. If-Match is the ETag
// of the file.
func (s *Server) deleteFile(w http.ResponseWriter, r *http.Request) error {
	f, err := s.bodyCall(r, &fileCall{})
	if err != nil {
		return err
	}
	if err := need("path", f.Path); err != nil {
		return err
	}
	if slices.Contains([]string{".", "..", "/"}, path.Base(f.Path)) {
		return &fileError{f.Path, syscall.EINVAL}
	}
	var answer struct {
		Deleted []string `json:"deleted"`
		Count   int      `json:"count"`
	}
	known := conditionsOf(r)
	err = f.do(f.Path, func() error {
		answer.Deleted, answer.Count = []string{f.Path}, 1
		if !f.recursive(false) {
			return s.remove(f.Path, known)
		}
		if err := known.same(f.Path); err != nil {
			return err
		}
		st, err := os.Lstat(f.Path)
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return s.remove(f.Path, known)
		}
		answer.Deleted, answer.Count = treeNames(f.Path)
		return os.RemoveAll(f.Path)
	})
	if err != nil {
		return err
	}
	return wire.Respond(w, answer)
}

// remove removes a file or an empty folder.
func (s *Server) remove(name string, known conditions) error {
	s.names.Lock()
	defer s.names.Unlock()
	if err := known.same(name); err != nil {
		return err
	}
	return os.Remove(name)
}

// maxDeleted is how many paths the answer to a deletion names.
const maxDeleted = 1000

// treeNames counts a tree's files, and names them, each folder after what is in it, as
// far as an answer has room. It skips files that it can't look at.
func treeNames(root string) (names []string, n int) {
	_ = filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err == nil {
			n++
			if len(names) < maxDeleted {
				names = append(names, name)
			}
		}
		return nil
	})
	slices.Reverse(names)
	return names, n
}

// caller is a fileCall, or a struct that embeds it, with the call's other fields.
type caller interface{ call() *fileCall }

func (f *fileCall) call() *fileCall { return f }

// bodyCall reads a call's JSON body, over which its query goes.
func (s *Server) bodyCall(r *http.Request, body caller) (*fileCall, error) {
	if err := wire.ReadJSON(r, body); err != nil {
		return nil, &fileError{r.URL.Path, badRequestFile(err.Error())}
	}
	f := body.call()
	q := r.URL.Query()
	f.Path = cmp.Or(q.Get("path"), f.Path)
	f.WorkingDir = cmp.Or(q.Get("workingDir"), f.WorkingDir)
	for key, set := range map[string]func(bool){
		"recursive": func(yes bool) { f.Recursive = &yes },
		"asRoot":    func(yes bool) { f.AsRoot = yes },
	} {
		if q.Get(key) == "" {
			continue
		}
		yes, err := wire.Boolean(q, key, false)
		if err != nil {
			return nil, err
		}
		set(yes)
	}
	return f, s.complete(f)
}
