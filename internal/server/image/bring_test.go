package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
)

// packedOf is an image as Pack writes it.
func packedOf(t testing.TB, image v1.Image) (digest string, text []byte) {
	t.Helper()
	s := storeIn(t, t.TempDir(), nil)
	got, err := s.Import(t.Context(), bytes.NewReader(layoutOf(t, mutate.AppendManifests(empty.Index, named(image, map[string]string{refAnnotation: "reg.example/x:1"}, nil)))), "", nil)
	must(t, err)
	p, err := Pack(t.Context(), s, got.Digest)
	must(t, err)
	if err := s.Remove(t.Context(), got.Digest, func(string) ([]string, error) { return nil, nil }); err == nil {
		t.Error("an image was removed while it was packed")
	}
	var out bytes.Buffer
	must(t, p.Write(t.Context(), &out))
	if int64(out.Len()) != p.Bytes {
		t.Errorf("%d bytes were written, and %d foretold", out.Len(), p.Bytes)
	}
	p.Close()
	must(t, s.Remove(t.Context(), got.Digest, func(string) ([]string, error) { return nil, nil }))
	return got.Digest, out.Bytes()
}

// membersIn are the members of a tar.
func membersIn(t testing.TB, text []byte) (all []member) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, err)
		all = append(all, member{*h, string(data)})
	}
}

// nothingIn checks that a store has no image, and nothing of one.
func nothingIn(t testing.TB, s *Store, what string) {
	t.Helper()
	if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("%s: there is %+v, %v", what, list, err)
	}
	if left := namesIn(t, s, stagingFolder); len(left) > 0 {
		t.Errorf("%s: staged is %q", what, left)
	}
}

// TestBring: an image comes with what it is, and without a name; it goes again if nobody used it.
func TestBring(t *testing.T) {
	digest, text := packedOf(t, imageOf(t, layerOf(t, file("a", "1")), layerOf(t, file("b", strings.Repeat("2", 100_000)))))
	s := storeIn(t, t.TempDir(), nil)
	finish, err := Bring(t.Context(), s, digest, bytes.NewReader(text))
	must(t, err)
	if _, err := s.Prune(t.Context(), func(string, []string) bool { return false }); err != nil {
		t.Error(err)
	}
	if got, err := s.Get(t.Context(), digest); err != nil || len(got.Names) > 0 || len(got.Layers) != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	finish(false)
	nothingIn(t, s, "given up")
	for _, folder := range []string{blobFolder, layerFolder} {
		if left := namesIn(t, s, folder); len(left) > 0 {
			t.Errorf("given up, %s has %q", folder, left)
		}
	}
	finish, err = Bring(t.Context(), s, digest, bytes.NewReader(text))
	must(t, err)
	finish(true)
	if lowers, err := s.Lowers(t.Context(), digest); err != nil || len(lowers) != 2 || shownIn(t, lowers[1]) != "a=1" {
		t.Errorf("got %q, %v", lowers, err)
	}
	// One that was here before stays, and one that got a name.
	finish, err = Bring(t.Context(), s, digest, bytes.NewReader(text))
	must(t, err)
	finish(false)
	_, err = s.Get(t.Context(), digest)
	must(t, err)
}

// TestBringHostile: Bring takes nothing of an archive that lacks a part of the image, or has
// another content under one of its digests. Names in the archive name nothing.
func TestBringHostile(t *testing.T) {
	digest, text := packedOf(t, imageOf(t, layerOf(t, file("a", "1")), layerOf(t, file("b", "2"))))
	other, otherText := packedOf(t, imageOf(t, layerOf(t, file("other", "1"))))
	manifest := blobName(hexOf(digest))
	members := membersIn(t, text)
	var blobs []string
	for _, m := range members {
		if strings.HasPrefix(m.Name, "blobs/") && m.Name != manifest {
			blobs = append(blobs, m.Name)
		}
	}
	if len(blobs) != 3 {
		t.Fatalf("it has %q", blobs)
	}
	change := func(name string, f func(string) string) []byte {
		var out []member
		for _, m := range members {
			if m.Name == name {
				m.text = f(m.text)
			}
			out = append(out, m)
		}
		return tarOf(t, out...)
	}
	without := func(name string) []byte {
		return tarOf(t, slices.DeleteFunc(slices.Clone(members), func(m member) bool { return m.Name == name })...)
	}
	attacks := map[string]struct {
		digest string
		text   []byte
		code   string
	}{
		"another image":            {digest, otherText, "image_bad"},
		"the digest of another":    {other, text, "image_bad"},
		"no manifest":              {digest, without(manifest), "image_bad"},
		"another manifest":         {digest, change(manifest, func(s string) string { return s + " " }), "image_bad"},
		"an endless manifest":      {digest, change(manifest, func(string) string { return strings.Repeat(" ", MaxDocument+1) }), "image_bad"},
		"no archive":               {digest, []byte(strings.Repeat("no tar", 1000)), "image_bad"},
		"nothing":                  {digest, nil, "image_bad"},
		"a root file system":       {digest, tarOf(t, folder("etc/"), file("etc/passwd", "x")), "image_bad"},
		"no digest":                {"sha256:../../etc", text, "image_bad"},
		"a digest of another kind": {"sha512:" + strings.Repeat("a", 128), text, "image_bad"},
		"cut short":                {digest, text[:len(text)/2], "image_bad"},
		"a name that leads out":    {digest, tarOf(t, append([]member{file("../../evil", "x")}, members...)...), "image_bad"},
		"a link to a file here":    {digest, tarOf(t, append(membersIn(t, without(blobs[1])), symlink(blobs[1], "/etc/passwd"))...), "image_bad"},
		"more members than are":    {digest, tarOf(t, slices.Repeat([]member{file("x", "")}, maxMembers+1)...), "image_bad"},
	}
	for _, blob := range blobs {
		attacks["without "+blob] = struct {
			digest string
			text   []byte
			code   string
		}{digest, without(blob), "image_bad"}
		for how, f := range map[string]func(string) string{
			"another ":  func(s string) string { return s[:len(s)-1] + string(s[len(s)-1]^1) },
			"more of ":  func(s string) string { return s + "x" },
			"less of ":  func(s string) string { return s[:len(s)-1] },
			"an empty ": func(string) string { return "" },
		} {
			attacks[how+blob] = struct {
				digest string
				text   []byte
				code   string
			}{digest, change(blob, f), "image_bad"}
		}
	}
	s := storeIn(t, t.TempDir(), nil)
	for name, a := range attacks {
		finish, err := Bring(t.Context(), s, a.digest, bytes.NewReader(a.text))
		if err == nil {
			finish(true)
		}
		if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != a.code {
			t.Errorf("%s: got %v, want the code %s", name, err, a.code)
		}
		nothingIn(t, s, name)
	}
	// Errors of what it comes through are their own, and so are those of the disk.
	broken := errors.New("broken")
	if _, err := Bring(t.Context(), s, digest, io.MultiReader(bytes.NewReader(text[:1000]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	full := storeIn(t, t.TempDir(), nil, func(o *Options) {
		o.Claim = func(int64) error { return fail.New("no_space", "the disk is full", "") }
	})
	_, err := Bring(t.Context(), full, digest, bytes.NewReader(text))
	wantCode(t, err, "no_space")
	nothingIn(t, full, "a full disk")
}

// bringChild is set, to the folder of its store, in the process that TestBringKilled runs
// itself in again. Variables with longer names have the digest and the archive's file.
const bringChild = "COVE_TEST_BRING_CHILD"

// TestBringKilled: a process that is killed while an image comes leaves nothing half used.
func TestBringKilled(t *testing.T) {
	if dir := os.Getenv(bringChild); dir != "" {
		f, err := os.Open(os.Getenv(bringChild + "_FILE"))
		must(t, err)
		s := storeIn(t, dir, nil)
		_, err = Bring(t.Context(), s, os.Getenv(bringChild+"_DIGEST"), f) // it is stopped in here
		t.Fatal("the point was not reached", err)
	}
	digest, text := packedOf(t, imageOf(t, layerOf(t, file("a", "1"))))
	archive := filepath.Join(t.TempDir(), "image.tar")
	must(t, os.WriteFile(archive, text, 0o600))
	for _, point := range fault.ImagePoints {
		dir := t.TempDir()
		child := exec.Command(os.Args[0], "-test.run=^TestBringKilled$")
		reached := filepath.Join(dir, "reached")
		child.Env = append(os.Environ(), bringChild+"="+dir, bringChild+"_FILE="+archive, bringChild+"_DIGEST="+digest, fault.Variable+"="+string(point)+"="+reached)
		killAt(t, child, reached)
		s := storeIn(t, dir, nil)
		if left := namesIn(t, s, stagingFolder); len(left) > 0 {
			t.Errorf("%s: staged is %q", point, left)
		}
		list, err := s.List(t.Context())
		if err != nil || (len(list) == 1) != (point == fault.ImageStored) {
			t.Errorf("%s: there is %+v, %v", point, list, err)
		}
		finish, err := Bring(t.Context(), s, digest, bytes.NewReader(text))
		must(t, err)
		finish(true)
		if lowers, err := s.Lowers(t.Context(), digest); err != nil || len(lowers) != 1 || shownIn(t, lowers[0]) != "a=1" {
			t.Errorf("%s: got %q, %v", point, lowers, err)
		}
	}
}
