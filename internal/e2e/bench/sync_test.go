package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// BenchmarkSync times cove sync push of a tree, beside tar to tar through cove exec into
// the same sandbox. Then it times a push after one edit, beside find -printf there;
// "MB/sent" is how much that push sends.
func BenchmarkSync(b *testing.B) {
	h := e2e.NewSyncHost(b)
	h.Run("", "cove", "exec", "-s", "paint", "true")
	for _, tree := range []struct {
		name        string
		files, size int
	}{{"1GiB", 1, 1 << 30}, {"100kx4KiB", 100_000, 4 << 10}, {"10kx4KiB", 10_000, 4 << 10}} {
		root := h.Path(tree.name)
		makeTree(b, root, tree.files, tree.size)
		b.Run(tree.name+"/push", func(b *testing.B) {
			h := h.On(b)
			var ours, floor []time.Duration
			for i := 0; b.Loop(); i++ {
				there := fmt.Sprintf("%s-%d", tree.name, i)
				ours = append(ours, timed(b, func() error { h.Run("", "cove", "sync", "push", "-s", "paint", tree.name, there); return nil }))
				floor = append(floor, timed(b, func() error {
					script := fmt.Sprintf("tar -C %s -cf - . | cove exec -s paint -i -- sh -c 'mkdir %s-tar && tar -C %s-tar -xf -'", root, there, there)
					cmd := exec.Command("sh", "-c", script)
					cmd.Env = h.Environ()
					return cmd.Run()
				}))
				h.Sh("rm -rf " + there + " " + there + "-tar")
			}
			report(b, ours, floor)
		})
		if tree.files == 1 {
			continue
		}
		h.Run("", "cove", "sync", "push", "-s", "paint", tree.name)
		b.Run(tree.name+"/again", func(b *testing.B) {
			h := h.On(b)
			var ours, floor []time.Duration
			var sent int64
			for i := 0; b.Loop(); i++ {
				if err := os.WriteFile(filepath.Join(root, "d1", "f1"), []byte(fmt.Sprint(i, time.Now())), 0o644); err != nil {
					b.Fatal(err)
				}
				ours = append(ours, timed(b, func() error { sent = h.Synced("", "push", tree.name).Sent; return nil }))
				floor = append(floor, timed(b, func() error { h.Sh("find " + tree.name + " -printf '%p %s %T@\n' >/dev/null"); return nil }))
			}
			report(b, ours, floor)
			b.ReportMetric(float64(sent)/1e6, "MB/sent")
		})
		h.Sh("rm -rf " + tree.name)
	}
	b.Logf("the server's peak memory is %d MiB", e2e.PeakResident(b, h.PID())>>20)
}

// makeTree makes files of a size, in a hundred folders.
func makeTree(b *testing.B, root string, files, size int) {
	b.Helper()
	content := make([]byte, max(size, 16<<20))
	_, _ = rand.NewChaCha8([32]byte{3}).Read(content) // never fails
	for i := range files {
		dir := filepath.Join(root, fmt.Sprintf("d%d", i%100))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		at := i * 16 % (len(content) - size + 1)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", i)), content[at:at+size], 0o644); err != nil {
			b.Fatal(err)
		}
	}
}
