package guest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/guest/users"
)

// TestMissing: if a program could not be looked up, the error does not say that it is missing.
func TestMissing(t *testing.T) {
	for _, tt := range []struct{ so, err, want error }{
		{syscall.ENOENT, syscall.ENOENT, syscall.ENOENT},
		{syscall.ENOENT, syscall.ENOTDIR, syscall.ENOENT},
		{syscall.ENOENT, syscall.EMFILE, syscall.EMFILE},
		{syscall.EMFILE, syscall.ENOENT, syscall.EMFILE},
		{syscall.EACCES, syscall.ENFILE, syscall.ENFILE},
		{syscall.EACCES, syscall.EMFILE, syscall.EMFILE},
		{syscall.EACCES, syscall.ELOOP, syscall.EACCES},
	} {
		if got := missing(tt.so, tt.err); !errors.Is(got, tt.want) {
			t.Errorf("%v, then %v: got %v, want %v", tt.so, tt.err, got, tt.want)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "there"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"there": "there: permission denied", "absent": "absent: command not found"} {
		c := &command{path: name, dir: dir, env: []string{"PATH=" + dir + ":" + loop}}
		_, err := c.find()
		if err = notStarted(c, err); !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := notStarted(&command{path: "true", dir: dir}, syscall.EMFILE); !strings.Contains(err.Error(), "true: too many open files") {
		t.Errorf("got %v", err)
	}
}

// TestImageVariables: a sprite's own variables override its image's, and the image's PATH
// comes after cove's.
func TestImageVariables(t *testing.T) {
	cs := &commands{given: []string{"PATH=/opt/bin:/bin", "A=image", "B=image", "TERM=dumb", "HOME=/app"}, env: func() map[string]string { return map[string]string{"B": "sprite", "C": "sprite"} }}
	c := &command{user: users.User{Name: "node", Home: "/home/node"}, tty: true}
	if err := cs.environment(c, []string{"C=call"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PATH=/.sprite/bin:/home/node/.local/bin:/opt/bin:/bin", "A=image", "B=sprite", "C=call", "TERM=xterm-256color", "HOME=/app", "USER=node"} {
		if !slices.Contains(c.env, want) {
			t.Errorf("no %s in %q", want, c.env)
		}
	}
	if slices.ContainsFunc(c.env, func(pair string) bool { return strings.HasPrefix(pair, "SHELL=") }) {
		t.Errorf("a shell, of an image that has none: %q", c.env)
	}
	if err := notStarted(&command{path: shell, dir: "/"}, syscall.ENOENT); !strings.Contains(err.Error(), "there is no shell here") {
		t.Errorf("got %v", err)
	}
}

// TestLocale: a command's encoding is UTF-8, unless its caller or its image sets another one.
func TestLocale(t *testing.T) {
	for _, tt := range []struct{ image, given, want []string }{
		{nil, nil, []string{"LC_CTYPE=C.UTF-8"}},
		{nil, []string{"LC_TIME=de_DE.UTF-8"}, []string{"LC_CTYPE=C.UTF-8", "LC_TIME=de_DE.UTF-8"}},
		{nil, []string{"LANG=de_DE.UTF-8"}, []string{"LANG=de_DE.UTF-8"}},
		{nil, []string{"LANG="}, []string{"LANG="}},
		{nil, []string{"LC_ALL=C"}, []string{"LC_ALL=C"}},
		{nil, []string{"LC_CTYPE=C"}, []string{"LC_CTYPE=C"}},
		{[]string{"LANG=ja_JP.eucJP"}, nil, []string{"LANG=ja_JP.eucJP"}},
	} {
		cs := &commands{given: tt.image, env: func() map[string]string { return nil }}
		c := &command{user: users.User{Name: "node", Home: "/home/node"}}
		if err := cs.environment(c, tt.given); err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(slices.Clone(c.env), func(pair string) bool { return !strings.HasPrefix(pair, "L") || strings.HasPrefix(pair, "LOGNAME=") })
		if slices.Sort(got); !slices.Equal(got, tt.want) {
			t.Errorf("image %q, given %q: got %q, want %q", tt.image, tt.given, got, tt.want)
		}
	}
}
