package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// A page shows a file, and a person is about to delete, rename or replace it. Meanwhile an
// agent may put another file in its place. So a request says which version was shown.

// versionHeader has the version of the file that is there, if an upload was refused.
const versionHeader = "X-Cove-Version"

// versionOf has the kind of an entry, and its ETag. In a sandbox that an older cove has
// started there is no ETag: then it has the mode, size and time.
func versionOf(e sprites.Entry) string {
	size := e.Size
	if e.IsDir {
		size = 0 // gVisor tells another one later
	}
	return e.Type + " " + cmp.Or(e.ETag, fmt.Sprintf("%s-%x-%x", e.Mode, size, e.ModTime.UnixNano()))
}

// kinds are those of entries, for people.
var kinds = map[string]string{"directory": "a folder", "file": "a file", "symlink": "a link"}

// errOtherEntry says that an entry is not the one of a version.
func errOtherEntry(e sprites.Entry, version string) error {
	now := ""
	if kind, _, _ := strings.Cut(version, " "); kind != e.Type {
		now = ": there is " + cmp.Or(kinds[e.Type], "something else") + " now"
	}
	return fail.New("file_changed", e.Path+" has changed since it was shown here"+now+"; nothing was done", "load the page again to see what is there")
}

// errOtherLink says that the entry to write leads elsewhere than the one that was shown.
func errOtherLink(e sprites.Entry) error {
	now := "is not a link any more"
	if e.Type == "symlink" {
		now = "is a link to " + e.Target + " by now"
	}
	return fail.New("file_changed", e.Path+" "+now+"; nothing was written", "copy your text, load the page again, and insert it there")
}

func errTaken(name string) error {
	return fail.New("exists", "there is a file of that name: "+name, "choose another name")
}

// isStale reports whether an error says that a file is not the one that was meant.
func isStale(err error) bool {
	e, ok := errors.AsType[*sprites.Error](err)
	return ok && e.StatusCode == http.StatusPreconditionFailed
}

// entry describes what is at a path, a link itself.
func (v *spriteView) entry(ctx context.Context, name string) (sprites.Entry, error) {
	st, err := v.inside().Stat(ctx, name)
	if err != nil {
		return sprites.Entry{}, err
	}
	e, ok := st.Sys().(sprites.Entry)
	if !ok {
		return e, errors.New(name + " has no description")
	}
	return e, nil
}

// modeOf are the permission bits of a file, where a link leads.
func (v *spriteView) modeOf(ctx context.Context, e sprites.Entry) (fs.FileMode, error) {
	if e.Type == "symlink" {
		list, err := v.listing(ctx, e.Path, false)
		if err != nil {
			return 0, err
		}
		if !isOne(list, e.Path) {
			return 0, fail.New("exists", e.Path+" leads to a folder", "")
		}
		e = list.Entries[0]
	}
	bits, err := strconv.ParseUint(e.Mode, 8, 32)
	return fs.FileMode(bits).Perm(), err
}

// replacedFile is a file that an upload takes the place of.
type replacedFile struct {
	sprites.Entry
	version string // also of the entry that a link leads to
	etag    string // of the file itself
	mode    fs.FileMode
}

func (v *spriteView) replaced(ctx context.Context, name string) (r replacedFile, err error) {
	if r.Entry, err = v.entry(ctx, name); err != nil {
		return r, err
	}
	if r.IsDir {
		return r, fail.New("exists", "there is a folder of that name", "")
	}
	r.version, r.etag = versionOf(r.Entry), r.ETag
	if r.Type == "symlink" {
		f, err := v.sprite().Open(ctx, name)
		if errors.Is(err, fs.ErrNotExist) {
			return r, fail.New("exists", "there is a link of that name, which leads nowhere", "delete it, or choose another name")
		}
		if err != nil {
			return r, err
		}
		r.etag = f.ETag()
		if err := f.Close(); err != nil {
			return r, err
		}
		r.version += " " + r.etag
	}
	r.mode, err = v.modeOf(ctx, r.Entry)
	return r, err
}

// known describes the entry at a path, if it is the version that was shown.
func (v *spriteView) known(ctx context.Context, name, version string) (sprites.Entry, error) {
	e, err := v.entry(ctx, name)
	if err == nil && versionOf(e) != version {
		err = errOtherEntry(e, version)
	}
	return e, err
}

// change is a call that changes a file or folder, if it is the entry.
func (v *spriteView) change(ctx context.Context, e sprites.Entry, r sprites.Request) error {
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if e.ETag != "" {
		r.Header.Set("If-Match", e.ETag)
	}
	r.Path = sprites.Path("v1", "sprites", v.name, "fs", r.Path)
	return v.api.Call(ctx, r, nil)
}

// remove deletes the version of a file or folder that was shown.
func (v *spriteView) remove(ctx context.Context, name, version string) error {
	e, err := v.known(ctx, name, version)
	if err != nil {
		return err
	}
	err = v.change(ctx, e, sprites.Request{Method: http.MethodDelete, Path: "delete", Query: url.Values{"path": {name}, "workingDir": {"/"}, "recursive": {"true"}}})
	if isStale(err) {
		return errOtherEntry(e, version)
	}
	return err
}

// rename moves the version of a file or folder that was shown to a name that is free.
func (v *spriteView) rename(ctx context.Context, name, to, version string) error {
	e, err := v.known(ctx, name, version)
	if err != nil {
		return err
	}
	if _, err := v.entry(ctx, to); err == nil {
		return errTaken(to)
	}
	err = v.change(ctx, e, sprites.Request{
		Method: http.MethodPost, Path: "rename", Header: http.Header{"If-None-Match": {"*"}},
		JSON: map[string]string{"source": name, "dest": path.Clean(to), "workingDir": "/"},
	})
	if !isStale(err) {
		return err
	}
	if _, err := v.entry(ctx, to); err == nil {
		return errTaken(to)
	}
	return errOtherEntry(e, version)
}
