package tools

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// A workspace is what the calls of one session share.
type workspace struct {
	dir    string // absolute: what relative paths are relative to
	locks  locks
	shells shells

	decoding sync.Mutex // held while an image is decoded: one at a time, for its memory
}

// path makes a path that a model gave absolute.
func (w *workspace) path(name string) (string, error) {
	switch {
	case name == "":
		return "", errorf(CodeBadInput, "a path is empty")
	case strings.ContainsRune(name, 0):
		return "", errorf(CodeBadInput, "a path holds a zero byte")
	case filepath.IsAbs(name):
		return filepath.Clean(name), nil
	}
	return filepath.Join(w.dir, name), nil
}

// shown is a path as the model sees it: relative if it is below the folder.
func (w *workspace) shown(path string) string {
	if rel, ok := strings.CutPrefix(path, strings.TrimSuffix(w.dir, "/")+"/"); ok && rel != "" {
		return rel
	}
	return path
}

// checkRegular returns an error if something that is used as a file is not a regular file.
func checkRegular(shown string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return errorf(CodeIsDirectory, "%s is a folder; Glob lists its files", shown)
	case !info.Mode().IsRegular():
		return errorf(CodeNotRegular, "%s is no regular file (%s)", shown, kindOf(info.Mode()))
	}
	return nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// openRegular opens a regular file. It opens nothing on which an open could hang or have an
// effect.
func openRegular(path, shown string) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = checkRegular(shown, info)
	}
	if err != nil {
		return nil, nil, coded(shown, err)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be a pipe by now
	if err != nil {
		return nil, nil, coded(shown, err)
	}
	if info, err = file.Stat(); err == nil {
		err = checkRegular(shown, info)
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, coded(shown, err)
	}
	return file, info, nil
}

// maxLinks bounds the links that lead to one file.
const maxLinks = 40

// target follows a path's links to the place where a file is, or would be made.
func target(path string) (string, error) {
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return path, nil // a folder of it is to be made
			}
			return "", err
		}
		path = filepath.Join(dir, filepath.Base(path))
		link, err := os.Readlink(path)
		if err != nil {
			return path, nil // not a link, or not there
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(dir, link)
		}
		path = link
	}
	return "", syscall.ELOOP
}

// locks has one lock per file that is being written.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	mu    sync.Mutex
	users int
}

// take waits for a file's lock and returns how to give it back.
func (l *locks) take(path string) (release func()) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	one := l.held[path]
	if one == nil {
		one = &lock{}
		l.held[path] = one
	}
	one.users++
	l.mu.Unlock()
	one.mu.Lock()
	return func() {
		one.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.held, path)
		}
	}
}

// sniff is how many bytes of a file decide whether it is binary, as in git.
const sniff = 8000

func isBinary(data []byte) bool {
	return bytes.IndexByte(data[:min(len(data), sniff)], 0) >= 0
}

// hashOf is the SHA-256 of the data that can be read, in hex.
func hashOf(r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func hashBytes(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// minMatch is how many digits of a hash if_match needs at least.
const minMatch = 12

// absent is the if_match of a file that must not be there.
const absent = "absent"

// checkMatch compares the hash that a caller expects with the file's. hash is empty if there
// is no file.
func checkMatch(shown, want, hash string) error {
	switch {
	case want == "":
		return nil
	case want == absent:
		if hash != "" {
			return errorf(CodeStale, "%s is there already; Read it first", shown)
		}
		return nil
	case len(want) < minMatch || strings.Trim(want, "0123456789abcdef") != "":
		return errorf(CodeBadInput, "if_match is the sha256 that Read says, or at least its first %d digits, or %q", minMatch, absent)
	case hash == "":
		return errorf(CodeStale, "%s is not there any more", shown)
	case !strings.HasPrefix(hash, want):
		return errorf(CodeStale, "%s was changed: its sha256 is %s now; Read it again", shown, hash[:16])
	}
	return nil
}

// cut shortens text to n bytes at most, and never in the middle of a character.
func cut[T string | []byte](text T, n int) T {
	if len(text) <= n {
		return text
	}
	for back := 0; back < utf8.UTFMax && back <= n; back++ {
		if utf8.RuneStart(text[n-back]) {
			return text[:n-back]
		}
	}
	return text[:n]
}

// cutFront keeps n bytes at most of the end of text, from a character's beginning.
func cutFront[T string | []byte](text T, n int) T {
	if len(text) <= n {
		return text
	}
	from := len(text) - n
	for skip := 0; skip < utf8.UTFMax && from+skip <= len(text); skip++ {
		if from+skip == len(text) || utf8.RuneStart(text[from+skip]) {
			return text[from+skip:]
		}
	}
	return text[from:]
}

// valid is text as JSON can carry it.
func valid(text []byte) string { return strings.ToValidUTF8(string(text), "\uFFFD") }
