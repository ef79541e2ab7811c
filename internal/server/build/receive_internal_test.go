package build

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func tarOf(t testing.TB, members ...*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range members {
		text := h.PAXRecords["COVE.text"]
		h.PAXRecords, h.Size = nil, int64(len(text))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func file(name, text string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, PAXRecords: map[string]string{"COVE.text": text}}
}

func link(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

var errFull = errors.New("no room")

// TestUnpack: a context is unpacked as it is. No entry gets out of its folder, and a context
// takes no more room than it was given.
func TestUnpack(t *testing.T) {
	for name, test := range map[string]struct {
		tar  []byte
		room int64
		want string // of the error; empty: none
	}{
		"files":            {tarOf(t, file("a/b", "1"), link("a/out", "../../secret"), &tar.Header{Typeflag: tar.TypeLink, Name: "same", Linkname: "a/b"}), 1 << 20, ""},
		"nothing":          {nil, 0, ""},
		"last counts":      {tarOf(t, link("a", "/etc"), file("a", "2")), 1 << 20, ""},
		"outward":          {tarOf(t, file("../x", "1")), 1 << 20, "file with the invalid name"},
		"through a link":   {tarOf(t, link("l", ".."), file("l/secret", "changed")), 1 << 20, "escapes"},
		"a far link":       {tarOf(t, link("l", "/"), file("l/cove-was-here", "1")), 1 << 20, "escapes"},
		"hard link out":    {tarOf(t, &tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "../secret"}), 1 << 20, "escapes"},
		"a device":         {tarOf(t, &tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}), 1 << 20, "neither a file"},
		"deep":             {tarOf(t, file(strings.Repeat("d/", 200)+"f", "1")), 1 << 20, "file with the invalid name"},
		"no room":          {tarOf(t, file("a", strings.Repeat("x", 1<<20))), 1 << 20, errFull.Error()},
		"many small files": {tarOf(t, file("a", ""), file("b", ""), file("c", "")), 2 * fileCost, errFull.Error()},
		"implied folders":  {tarOf(t, file(strings.Repeat("d/", 100)+"f", "")), 20 * fileCost, errFull.Error()},
		"no tar":           {[]byte(strings.Repeat("no tar", 1000)), 1 << 20, "can't be used"},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			secret, dir := filepath.Join(top, "secret"), filepath.Join(top, "context")
			if err := errors.Join(os.WriteFile(secret, []byte("kept"), 0o600), os.Mkdir(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
			room := test.room
			err := unpack(t.Context(), dir, bytes.NewReader(test.tar), func(n int64) error {
				if room -= n; room < 0 {
					return errFull
				}
				return nil
			})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if got, err := os.ReadFile(secret); string(got) != "kept" {
				t.Errorf("beside it: %q, %v", got, err)
			}
			if _, err := os.Lstat("/cove-was-here"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("on the host: %v", err)
			}
			if names, err := os.ReadDir(top); len(names) != 2 {
				t.Errorf("beside it: %v, %v", names, err)
			}
			if name == "files" {
				got, err := os.ReadFile(filepath.Join(dir, "same"))
				to, err2 := os.Readlink(filepath.Join(dir, "a/out"))
				if string(got) != "1" || to != "../../secret" || errors.Join(err, err2) != nil {
					t.Errorf("unpacked: %q, %q, %v, %v", got, to, err, err2)
				}
			}
		})
	}
}

// FuzzUnpack: no context makes anything outside of its folder, or more than it was given room for.
func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, file("a/b", "1"), link("l", ".."), file("l/x", "2")))
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		dir := filepath.Join(top, "context")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		room := int64(1 << 20)
		_ = unpack(t.Context(), dir, bytes.NewReader(data), func(n int64) error { // refused or not
			if room -= n; room < 0 {
				return errFull
			}
			return nil
		})
		if names, err := os.ReadDir(top); len(names) != 1 {
			t.Errorf("beside it: %v, %v", names, err)
		}
	})
}
