package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

const (
	maxView    = 256 << 10 // of a file that is shown, or edited
	maxEntries = 2000      // of a folder
)

// filesPage is one folder, or one file, of a sprite.
type filesPage struct {
	Head    spriteHead
	Path    string
	Crumbs  []crumb
	Entry   sprites.Entry
	Entries []sprites.Entry // of a folder
	More    int             // entries that are not shown
	View    *fileView       // of a file
	Points  []string        // checkpoints to compare with
}

// Version is the version of the entry that the page shows.
func (p filesPage) Version() string { return versionOf(p.Entry) }

type crumb struct{ Name, Path string }

// fileView is what is shown of a file.
type fileView struct {
	Text   string
	Why    string // it is not shown, or can't be edited
	Shown  bool
	Edits  bool
	Digest string
}

// filePath is the absolute path that a request names.
func filePath(text string) (string, error) {
	if !path.IsAbs(text) || strings.ContainsRune(text, 0) || len(text) > 4096 {
		return "", fail.New("bad_request", "the path must be absolute", "")
	}
	return path.Clean(text), nil
}

// listing asks for a folder, or with one for a file itself.
func (v *spriteView) listing(ctx context.Context, name string, one bool) (list sprites.ListFiles, err error) {
	q := url.Values{"path": {name}, "workingDir": {"/"}}
	if name == "" {
		q = url.Values{} // the home of the sprite's user
	}
	if one {
		q.Set("stat", "true")
	} else {
		q.Set("limit", strconv.Itoa(maxEntries))
	}
	err = through(v, &hearing{v: v.view}).Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "sprites", v.name, "fs", "list"), Query: q, Retry: true}, &list)
	return list, unheard(err, "this folder", "cove exec -s "+v.name+" ls "+typed(name))
}

// typed is a folder as a person types it in a shell.
func typed(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("/._-", r) && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	}) {
		return "FOLDER"
	}
	return name
}

func spriteFiles(v *spriteView) error {
	h, asked, err := v.awake("files", "see its files")
	if err != nil || asked {
		return err
	}
	ctx := v.r.Context()
	name := v.r.URL.Query().Get("path")
	if name != "" {
		if name, err = filePath(name); err != nil {
			return err
		}
	}
	list, err := v.listing(ctx, name, true)
	if err != nil {
		return err
	}
	if len(list.Entries) != 1 {
		return fail.New("not_found", "there is no such file", "")
	}
	p := filesPage{Head: h, Path: list.Path, Entry: list.Entries[0], Crumbs: crumbs(list.Path)}
	if p.Entry.IsDir || p.Entry.Type == "symlink" {
		if list, err = v.listing(ctx, p.Path, false); err != nil {
			return err
		}
		if p.Entry.IsDir = p.Entry.IsDir || !isOne(list, p.Path); p.Entry.IsDir {
			p.Entries, p.More = sorted(list)
		}
	}
	if !p.Entry.IsDir {
		if p.View, err = v.viewFile(ctx, p.Entry); err != nil {
			return err
		}
	}
	points, err := v.sprite().Checkpoints(ctx, false)
	if err != nil {
		return err
	}
	for _, c := range points[:min(len(points), maxPoints)] {
		if c.ID != present {
			p.Points = append(p.Points, c.ID)
		}
	}
	l := v.layout(h.Info.Name + ": " + wholeLine(p.Path))
	l.Live, l.Script = h.live()+"&tab=files", "sprite.js"
	render(v.w, v.r, http.StatusOK, l, "sprite-files", p)
	return nil
}

// isOne reports whether a listing is of a file, not of a folder.
func isOne(list sprites.ListFiles, name string) bool {
	return len(list.Entries) == 1 && list.Entries[0].Path == name
}

// sorted are the entries of a folder, folders first, as many as are shown.
func sorted(list sprites.ListFiles) (shown []sprites.Entry, more int) {
	entries := list.Entries
	slices.SortFunc(entries, func(a, b sprites.Entry) int {
		if a.IsDir != b.IsDir {
			return map[bool]int{true: -1, false: 1}[a.IsDir]
		}
		return strings.Compare(a.Name, b.Name)
	})
	if len(entries) > maxEntries {
		entries = entries[:maxEntries] // an older sandbox knows no limit
	}
	return entries, max(0, list.Count-len(entries))
}

// crumbs lead from the root to a file.
func crumbs(name string) []crumb {
	all := []crumb{{"/", "/"}}
	at := "/"
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if part != "" {
			at = path.Join(at, part)
			all = append(all, crumb{part, at})
		}
	}
	return all
}

// spriteBranch is the content of a folder, for the place below it in the tree.
func spriteBranch(v *spriteView) error {
	name, err := filePath(v.r.URL.Query().Get("path"))
	if err == nil {
		err = v.mustBeAwake()
	}
	if err != nil {
		return err
	}
	list, err := v.listing(v.r.Context(), name, false)
	if err != nil {
		return err
	}
	p := filesPage{Head: spriteHead{Info: sprites.Info{Name: v.name}}, Path: name}
	p.Entries, p.More = sorted(list)
	return v.fragment("file-entries", p)
}

// viewFile reads the beginning of a file.
func (v *spriteView) viewFile(ctx context.Context, e sprites.Entry) (*fileView, error) {
	if e.Type != "file" && e.Type != "symlink" {
		return &fileView{Why: "This is not a file with content (" + e.Type + ")."}, nil
	}
	b, _, err := v.beginning(ctx, e.Path)
	if err != nil {
		return nil, err
	}
	whole := len(b) <= maxView
	if !whole {
		b = b[:maxView]
		for len(b) > 0 && !utf8.RuneStart(b[len(b)-1]) {
			b = b[:len(b)-1]
		}
		b = b[:max(0, len(b)-1)] // a rune may have been cut
	}
	view := &fileView{Digest: digest(b)}
	switch {
	case bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b):
		view.Why = "This file is binary (" + formatBytes(e.Size) + "). Download it to look at it."
	case !whole:
		view.Text, view.Shown, view.Why = string(b), true, "The first "+formatBytes(maxView)+" of "+formatBytes(e.Size)+" are shown. Download it to see all, or edit it in a terminal."
	default:
		text := string(b)
		if byReturns(b) {
			text = strings.ReplaceAll(text, "\r\n", "\n")
		}
		view.Shown = true
		view.Text, view.Edits = withNames(text)
		switch {
		case !view.Edits:
			view.Why = "It has " + nameBegins + ", with which this page names characters that can't be seen. Edit it in a terminal."
		case view.Text != text:
			view.Why = "It has characters that can't be seen, or that act on others. Here they are shown by names, such as " + nameBegins + "FEFF" + nameEnds + ", and are saved unchanged."
		}
	}
	return view, nil
}

// beginning reads as much of a file as a page shows, and one byte more, if there is one. etag
// is the file's.
func (v *spriteView) beginning(ctx context.Context, name string) (b []byte, etag string, err error) {
	f, err := v.sprite().Open(ctx, name)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = f.Close() }()
	b, err = io.ReadAll(io.LimitReader(f, maxView+1))
	return b, f.ETag(), err
}

// byReturns reports whether all lines of a file end with a carriage return, and there are no
// other ones.
func byReturns(b []byte) bool {
	n := bytes.Count(b, []byte("\r\n"))
	return n > 0 && n == bytes.Count(b, []byte("\n")) && n == bytes.Count(b, []byte("\r"))
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// spriteSave writes a file that was edited. If the file has changed since it was shown, only
// the version that the person was told of is written over. That version is kept beside the
// file.
func spriteSave(v *spriteView) error {
	name, err := filePath(v.r.PostFormValue("path"))
	if err == nil {
		err = v.mustBeAwake()
	}
	if err != nil {
		return err
	}
	ctx, s := v.r.Context(), v.inside()
	link := v.r.PostFormValue("link")                                   // where the one that was shown leads
	text := strings.ReplaceAll(v.r.PostFormValue("text"), "\r\n", "\n") // as browsers send all lines
	mode := fs.FileMode(0o644)
	was, etag, err := v.beginning(ctx, name)
	shown, over := v.r.PostFormValue("digest"), v.r.PostFormValue("over")
	switch {
	case err == nil && len(was) > maxView:
		return fail.New("conflict", name+" is larger than "+formatBytes(maxView)+" by now, and can't be edited here; nothing was written", "copy your text, and edit the file in a terminal")
	case errors.Is(err, fs.ErrNotExist) && (shown == "" || over == gone):
		if e, err := v.entry(ctx, name); err == nil {
			return errOtherLink(e)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text = withoutNames(text)
	case errors.Is(err, fs.ErrNotExist):
		return otherVersion(v, name, gone)
	case errors.Is(err, syscall.EISDIR):
		return fail.New("file_changed", name+" is a folder by now; nothing was written, and your text is still below", "copy your text, and save it by another name")
	case err != nil:
		return err
	case digest(was) != shown && digest(was) != over:
		return otherVersion(v, name, digest(was))
	default:
		e, err := v.entry(ctx, name) // after the text was read, which the ETag belongs to
		if err != nil {
			return err
		}
		if e.Target != link {
			return errOtherLink(e)
		}
		if mode, err = v.modeOf(ctx, e); err != nil {
			return err
		}
		if byReturns(was) {
			text = strings.ReplaceAll(text, "\n", "\r\n")
		}
		text = withoutNames(text)
	}
	v.say("%s is saved.", path.Base(name))
	if err == nil && digest(was) != shown {
		kept, err := v.keepOther(ctx, name, was, mode)
		if err != nil {
			return err
		}
		v.say("%s is saved. The other version is kept as %s.", path.Base(name), path.Base(kept))
	}
	err = s.WriteFile(ctx, name, strings.NewReader(text), sprites.WriteOptions{Mode: mode, IfMatch: etag, IfNew: errors.Is(err, fs.ErrNotExist)})
	if isStale(err) {
		now, _, err := v.beginning(ctx, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return otherVersion(v, name, gone)
		case err != nil:
			return err
		}
		return otherVersion(v, name, digest(now))
	}
	if err != nil {
		return err
	}
	return v.redirect(v.filesAt(name))
}

// gone is the version of a file that was deleted.
const gone = "gone"

// keepOther writes a version of a file beside it, under a name that is free, or has the same content already.
func (v *spriteView) keepOther(ctx context.Context, name string, b []byte, mode fs.FileMode) (kept string, err error) {
	const most = 20
	for n := 1; n <= most; n++ {
		kept = name + ".other"
		if n > 1 {
			kept += strconv.Itoa(n)
		}
		has, _, err := v.beginning(ctx, kept)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err := v.inside().WriteFile(ctx, kept, bytes.NewReader(b), sprites.WriteOptions{Mode: mode, Size: int64(len(b)), IfNew: true})
			if !isStale(err) { // else it is a link that leads nowhere
				return kept, err
			}
		case err == nil && bytes.Equal(has, b):
			return kept, nil
		}
	}
	return "", fail.New("conflict", "there are "+strconv.Itoa(most)+" other versions beside "+name+" already; nothing was written", "delete those that you don't need, such as "+name+".other")
}

// otherVersion refuses to write a file that has changed since it was shown. It leads to the version that is there
// now, and offers to write over that.
func otherVersion(v *spriteView, name, version string) error {
	what := "has changed"
	if version == gone {
		what = "was deleted"
	}
	e := fail.New("file_changed", name+" "+what+" since it was shown here; nothing was written", "copy your text, load the page again, and insert it there")
	if wantsPage(v.r) {
		return e
	}
	fragment(v.w, v.r, e.Status(), "file-changed", staleFile{describe(e), v.filesAt(name), version, version == gone})
	return nil
}

// staleFile says that a file was not written.
type staleFile struct {
	problem
	Now     string // the page of the file as it is now
	Version string // that is there now
	Gone    bool   // none is
}

// filesAt is the page of a file.
func (v *spriteView) filesAt(name string) string {
	return v.at("files") + "?path=" + url.QueryEscape(name)
}

// spriteUpload takes one file as the body of a request. It replaces an existing file only if
// the request says so, by the file's version (over).
func spriteUpload(v *spriteView) error {
	q := v.r.URL.Query()
	name, err := filePath(q.Get("path"))
	over := q.Get("over")
	if err == nil && over != "" {
		err = v.confirm() // the file that is there is lost
	}
	if err == nil {
		err = v.mustBeAwake()
	}
	if err != nil {
		return err
	}
	opts := sprites.WriteOptions{Mode: 0o644, Size: max(v.r.ContentLength, 0)}
	there, err := v.replaced(v.r.Context(), name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && over == "":
		opts.IfNew = true
	case err != nil:
		return err
	case over == "":
		v.w.Header().Set(versionHeader, there.version)
		return errTaken(name)
	case over != there.version:
		return errOtherEntry(there.Entry, over)
	default:
		opts.Mode, opts.IfMatch = there.mode, there.etag
	}
	err = v.inside().WriteFile(v.r.Context(), name, v.r.Body, opts)
	switch {
	case isStale(err) && opts.IfNew:
		return errTaken(name)
	case isStale(err):
		return errOtherEntry(there.Entry, over)
	case err != nil:
		return err
	}
	v.say("%s is uploaded.", path.Base(name))
	keepSaying(v.view) // sprite.js loads the page again
	v.w.WriteHeader(http.StatusNoContent)
	return nil
}

// spriteDownload gives a file to be kept, never to be shown: it is a sandbox's, at our own origin.
func spriteDownload(v *spriteView) error {
	name, err := filePath(v.r.URL.Query().Get("path"))
	if err == nil {
		err = v.mustBeAwake()
	}
	if err != nil {
		return err
	}
	f, err := v.sprite().Open(v.r.Context(), name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h := v.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	disposition := mime.FormatMediaType("attachment", map[string]string{"filename": line(path.Base(name))})
	if disposition == "" {
		disposition = "attachment"
	}
	h.Set("Content-Disposition", disposition)
	_, _ = io.Copy(v.w, f) // a browser that went away is nobody's error
	return nil
}

// spriteFileDo renames or deletes a file, or makes a folder.
func spriteFileDo(v *spriteView) error {
	name, err := filePath(v.r.PostFormValue("path"))
	if err == nil && v.r.PathValue("deed") == "delete" {
		err = v.confirm()
	}
	if err == nil {
		err = v.mustBeAwake()
	}
	if err != nil {
		return err
	}
	ctx, s := v.r.Context(), v.inside()
	to, shown := v.r.PostFormValue("to"), v.r.PostFormValue("version")
	if v.r.PathValue("deed") != "delete" {
		if !path.IsAbs(to) {
			to = path.Join(map[bool]string{true: name, false: path.Dir(name)}[v.r.PathValue("deed") != "rename"], to)
		}
		if to, err = filePath(to); err != nil {
			return err
		}
	}
	switch v.r.PathValue("deed") {
	case "rename":
		v.say("%s was renamed to %s.", name, to)
		err = v.rename(ctx, name, to, shown)
	case "folder":
		v.say("The folder %s is made.", to)
		err = s.MkdirAll(ctx, to, 0o755)
	case "delete":
		v.say("%s is deleted.", name)
		to = path.Dir(name)
		err = v.remove(ctx, name, shown)
	default:
		return fail.New("not_found", "there is no such page", "")
	}
	if err != nil {
		return err
	}
	return v.redirect(v.filesAt(to))
}
