package buildcontext

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite: a context is sent without ignored files. Links are sent as they are; sockets are named.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	var errs []error
	for name, text := range map[string]string{
		"Dockerfile": "FROM a", "kept": "1", "a/b/c.log": "2", "a/b/keep.log": "3", "node_modules/x/y": "4", "other/Dev": "FROM b", "other/Dev.dockerignore": "kept\n",
		".dockerignore": "# note\nnode_modules\n**/*.log\n!a/b/keep.log\nDockerfile\nother\nsecret/\n!secret/public\n", "secret/key": "5", "secret/public": "6",
	} {
		at := filepath.Join(dir, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644))
	}
	errs = append(errs, os.Symlink("/etc/passwd", filepath.Join(dir, "out")), os.Symlink("loop", filepath.Join(dir, "loop")))
	socket, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, test := range []struct{ dockerfile, stdin, text, want string }{
		{"", "", "FROM a", ".dockerignore a/ a/b/ a/b/keep.log kept loop out secret/ secret/public"},
		{"-", "FROM c", "FROM c", ".dockerignore a/ a/b/ a/b/keep.log kept loop out secret/ secret/public"},
		{filepath.Join(dir, "other/Dev"), "", "FROM b", ".dockerignore Dockerfile a/ a/b/ a/b/c.log a/b/keep.log loop node_modules/ node_modules/x/ node_modules/x/y other/ other/Dev other/Dev.dockerignore out secret/ secret/key secret/public"},
	} {
		text, _, ignore, err := Source{Dir: dir, Dockerfile: test.dockerfile, In: strings.NewReader(test.stdin)}.Read()
		if err != nil || string(text) != test.text {
			t.Errorf("%q: the Dockerfile is %q, %v", test.dockerfile, text, err)
		}
		var out bytes.Buffer
		sent, err := Write(t.Context(), &out, dir, ignore)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Name == "out" && (h.Typeflag != tar.TypeSymlink || h.Linkname != "/etc/passwd") {
				t.Errorf("the link is %+v", h)
			}
			all = append(all, h.Name)
		}
		if got := strings.Join(all, " "); got != test.want || sent.Files != int64(len(all)) || strings.Join(sent.LeftOut, " ") != "sock" {
			t.Errorf("%q: got %s, %+v\nwant %s", test.dockerfile, got, sent, test.want)
		}
	}
	if _, _, _, err := (Source{Dir: t.TempDir()}).Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a Dockerfile: %v", err)
	}
}

// TestIgnoreError: what is wrong with a .dockerignore file is told with its line.
func TestIgnoreError(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"Containerfile": "FROM scratch\n", ".dockerignore": "# none\n\nok\n[a-\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, name, _, err := Source{Dir: dir}.Read()
	if filepath.Base(name) != "Containerfile" || err == nil || !strings.Contains(err.Error(), `line 4: "[a-"`) {
		t.Errorf("got %s, %v", name, err)
	}
}
