package checkpoints

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// nthStep returns a script that turns the sprite's tree after n-1 steps into the tree
// after n. It renames and removes folders that lie in sealed layers, and appends to files
// in them.
func nthStep(n int) string {
	script := fmt.Sprintf("set -e; mkdir -p tree; cd tree; echo %[1]d >now; echo %[1]d >>all; mkdir d%[1]d; echo %[1]d >d%[1]d/f", n)
	if n > 1 {
		script += fmt.Sprintf("; mv d%[1]d r%[1]d", n-1)
	}
	if n > 2 {
		script += fmt.Sprintf("; echo %d >>r%d/f", n, n-2)
	}
	if n > 5 {
		script += fmt.Sprintf("; rm -r r%d", n-5)
	}
	return script
}

// treeAfter is the tree after n steps: the files' contents.
func treeAfter(n int) map[string]string {
	var all strings.Builder
	for k := range n {
		fmt.Fprintln(&all, k+1)
	}
	tree := map[string]string{"now": fmt.Sprintln(n), "all": all.String(), fmt.Sprintf("d%d/f", n): fmt.Sprintln(n)}
	for k := max(1, n-4); k < n; k++ {
		text := fmt.Sprintln(k)
		if k+2 <= n {
			text += fmt.Sprintln(k + 2)
		}
		tree[fmt.Sprintf("r%d/f", k)] = text
	}
	return tree
}

// manyCheckpoints is a sprite with many checkpoints.
type manyCheckpoints struct {
	*e2e.Host
	sprite *sprites.Sprite
}

// tree returns the tree of a checkpoint, as exported.
func (m manyCheckpoints) tree(id string) (map[string]string, error) {
	body, err := m.sprite.Export(m.T.Context(), sprites.ExportOptions{Checkpoint: id})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	in, err := zstd.NewReader(body)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	tree := map[string]string{}
	for members := tar.NewReader(in); ; {
		head, err := members.Next()
		if errors.Is(err, io.EOF) {
			return tree, nil
		}
		if err != nil {
			return nil, err
		}
		name, inside := strings.CutPrefix(head.Name, "disk/home/sprite/tree/")
		if !inside || head.Typeflag != tar.TypeReg || strings.HasSuffix(name, ".wh..wh..opq") { // a folder's mark
			continue
		}
		text, err := io.ReadAll(members)
		if err != nil {
			return nil, err
		}
		tree[name] = string(text)
	}
}

// whole checks that checkpoints have the trees that they were made with.
func (m manyCheckpoints) whole(when string, numbers []int) {
	m.T.Helper()
	for _, n := range numbers {
		got, err := m.tree(fmt.Sprintf("v%d", n))
		if err != nil {
			m.T.Fatalf("%s: v%d: %v", when, n, err)
		}
		if want := treeAfter(n); !maps.Equal(got, want) {
			m.T.Fatalf("%s: v%d has %q, want %q", when, n, got, want)
		}
	}
	sum, err := m.sprite.Verify(m.T.Context(), "", func(sprites.VerifyLine) {})
	if err != nil || sum.Problems > 0 {
		m.T.Errorf("%s: verify: %+v, %v", when, sum, err)
	}
}

func (m manyCheckpoints) sh(script string) string {
	m.T.Helper()
	out, err := m.sprite.CommandContext(m.T.Context(), "sh", "-c", script).CombinedOutput()
	if err != nil {
		m.T.Fatalf("%s: %v, %s", script, err, out)
	}
	return string(out)
}

func (m manyCheckpoints) checkpoint() (id string, took time.Duration) {
	m.T.Helper()
	began := time.Now()
	c, err := m.sprite.Checkpoint(m.T.Context(), sprites.CheckpointRequest{}, nil)
	if err != nil {
		m.T.Fatal(err)
	}
	return c.ID, time.Since(began)
}

func (m manyCheckpoints) list() (list []sprites.Checkpoint, took time.Duration) {
	m.T.Helper()
	began := time.Now()
	list, err := m.sprite.Checkpoints(m.T.Context(), true)
	if err != nil {
		m.T.Fatal(err)
	}
	return list, time.Since(began)
}

// grewFrom checks the source of each state of a list.
func grewFrom(t *testing.T, list []sprites.Checkpoint, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, c := range list {
		got[c.ID] = c.SourceID
	}
	if !maps.Equal(got, want) {
		t.Errorf("what grew from what is %v, want %v", got, want)
	}
}

// TestSoakCheckpoints500: a sprite keeps 500 checkpoints, and can be restored to the
// first. Then every second one is deleted: the merges that follow change none of the
// others, also with the next server.
func TestSoakCheckpoints500(t *testing.T) {
	times := 10
	if e2e.Soak() {
		times = 500
	}
	m := manyCheckpoints{Host: e2e.NewHost(t)}
	m.Serve(nil)
	m.Run("", "cove", "create", "paint", "--idle", "0")
	m.sprite = m.Client().Sprite("paint")
	want := map[string]string{}
	var all []int
	var created []time.Duration
	for n := 1; n <= times; n++ {
		m.sh(nthStep(n))
		id, took := m.checkpoint()
		if id != fmt.Sprintf("v%d", n) {
			t.Fatalf("checkpoint %d is %s", n, id)
		}
		created, all = append(created, took), append(all, n)
		want[id] = fmt.Sprintf("v%d", n-1)
		if n == 10 || n == 100 || n == 500 {
			var listed []time.Duration
			for range 5 {
				_, took := m.list()
				listed = append(listed, took)
			}
			t.Logf("at %3d checkpoints: create %.0f ms, list %.1f ms", n, e2e.Median(created[len(created)-10:]), e2e.Median(listed))
		}
	}
	want["v1"], want["Current"] = "", fmt.Sprintf("v%d", times)
	list, _ := m.list()
	grewFrom(t, list, want)
	m.whole("made", all)

	done, err := m.sprite.RestoreCheckpoint(t.Context(), "v1", sprites.RestoreRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if out := m.sh("cd tree && find . -type f | sort && cat all now d1/f"); out != "./all\n./d1/f\n./now\n1\n1\n1\n" {
		t.Errorf("restored, it has %q", out)
	}
	want[done.Replaced], want["Current"] = fmt.Sprintf("v%d", times), "v1"
	m.sh(nthStep(2)) // a branch
	branch, _ := m.checkpoint()
	want[branch], want["Current"] = "v1", branch
	list, _ = m.list()
	grewFrom(t, list, want)

	kept := slices.DeleteFunc(slices.Clone(all), func(n int) bool { return n%2 == 0 })
	for n := 2; n <= times; n += 2 {
		if err := m.sprite.DeleteCheckpoint(t.Context(), fmt.Sprintf("v%d", n)); err != nil {
			t.Fatal(err)
		}
		delete(want, fmt.Sprintf("v%d", n))
		for id, source := range want {
			if source == fmt.Sprintf("v%d", n) {
				want[id] = fmt.Sprintf("v%d", n-1)
			}
		}
	}
	list, _ = m.list()
	grewFrom(t, list, want)
	m.whole("every second one deleted", kept)
	if e2e.Soak() {
		for range 20 { // layers of another branch are merged here
			branch, _ = m.checkpoint()
		}
	}
	e2e.SignalAll(t, syscall.SIGKILL, m.PID())
	m.Serve(nil)
	m.sprite = m.Client().Sprite("paint")
	m.whole("with the next server", kept)
	if out := m.sh("cat tree/all"); out != "1\n2\n" {
		t.Errorf("the branch has %q", out)
	}
	// All checkpoints but the branch are deleted.
	for id := range want {
		if id != "Current" && id != branch {
			if err := m.sprite.DeleteCheckpoint(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	e2e.Await(t, "layers that nobody needs to be removed", func() bool { return m.layers() < min(times, layers.MaxLowers) })
}

// layers counts the layers in the data folder.
func (m manyCheckpoints) layers() int {
	dirs, _ := filepath.Glob(filepath.Join(m.Data, "layers", "*")) // the pattern is right
	return len(dirs)
}

// TestSoakDeepFolders: folders may be nested so deep that no path reaches the last, and
// be renamed there. Their layers are merged, and each checkpoint keeps its content. In
// make soak there are more checkpoints than layers can be mounted at once.
func TestSoakDeepFolders(t *testing.T) {
	times := 9
	if e2e.Soak() {
		times = layers.MaxLowers + 4
	}
	m := manyCheckpoints{Host: e2e.NewHost(t)}
	m.Serve(nil)
	m.Run("", "cove", "create", "paint", "--idle", "0")
	m.sprite = m.Client().Sprite("paint")
	const step = `import os, sys
n = int(sys.argv[1])
open('step', 'w').write(str(n))
for _ in range(40):
    os.makedirs('n' * 200, exist_ok=True)
    os.chdir('n' * 200)
open(f'f{n}', 'w').write(f'{n}\n')
os.mkdir(f'd{n}')
open(f'd{n}/in', 'w').write(f'{n}\n')
for old in os.listdir():
    if old[0] == 'r':
        open(f'{old}/more', 'a').write(f'{n}\n')
    elif old[0] == 'd' and old != f'd{n}':
        os.rename(old, 'r' + old[1:])
`
	const tell = `import os
step = open('step').read()
for _ in range(40):
    os.chdir('n' * 200)
print(step, sorted((os.path.relpath(os.path.join(d, f)), open(os.path.join(d, f)).read()) for d, _, files in os.walk('.') for f in files))
`
	told := map[string]string{}
	state := func() string { return m.sh("python3 -c \"" + tell + "\"") }
	for n := 1; n <= times; n++ {
		if n <= 3 || n%8 == 0 || n == times {
			m.sh(fmt.Sprintf("python3 -c \"%s\" %d", step, n))
		}
		var want string
		if n == 3 || n == times {
			want = state()
		}
		id, _ := m.checkpoint()
		if want != "" {
			told[id] = want
		}
	}
	e2e.Await(t, "a merge of its layers", func() bool {
		log, err := os.ReadFile(filepath.Join(m.Data, "serve.log"))
		return err == nil && strings.Contains(string(log), "layers merged")
	})
	for id, want := range told {
		if _, err := m.sprite.RestoreCheckpoint(t.Context(), id, sprites.RestoreRequest{}, nil); err != nil {
			t.Fatal(err)
		}
		if got := state(); got != want {
			t.Errorf("%s is %s, was %s", id, got, want)
		}
	}
}
