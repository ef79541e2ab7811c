package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestUnreclaimable(t *testing.T) {
	const (
		v1 = "cache 900\nrss 10\nshmem 5\ninactive_file 890\ntotal_cache 1900\ntotal_rss 100\ntotal_shmem 50\ntotal_inactive_file 1700\n"
		v2 = "anon 100\nfile 900\nkernel_stack 3\npagetables 4\nshmem 50\nslab_reclaimable 800\nslab_unreclaimable 5\n"
	)
	for _, c := range []struct {
		stat string
		want int64
	}{{v1, 150}, {v2, 162}, {"", 0}, {"rss\nanon x\n", 0}} {
		if got := unreclaimable([]byte(c.stat)); got != c.want {
			t.Errorf("of %q: got %d, want %d", c.stat, got, c.want)
		}
	}
}

// Cache does not count, unless a process waits for memory all the same.
func TestReadMemory(t *testing.T) {
	g := memoryGroup{dir: t.TempDir(), v1: true, limit: 300 << 20}
	for _, c := range []struct {
		usage, stat, control string
		want                 int64
	}{
		{"1000\n", "total_rss 7\n", "oom_kill_disable 1\nunder_oom 0\n", 1000},
		{"299000000\n", "total_rss 7\n", "oom_kill_disable 1\nunder_oom 0\n", 7},
		{"299000000\n", "total_rss 7\n", "oom_kill_disable 1\nunder_oom 1\n", 299000000},
	} {
		for name, text := range map[string]string{"memory.usage_in_bytes": c.usage, "memory.stat": c.stat, "memory.oom_control": c.control} {
			if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := g.read(); err != nil || m.used != c.want {
			t.Errorf("with %+v: used %d, %v; want %d", c, m.used, err, c.want)
		}
	}
}

// The less is free, the sooner is the next look, and a limit of any size leaves room
// to work in.
func TestNextLook(t *testing.T) {
	last := time.Duration(0)
	for _, free := range []int64{-1 << 40, 0, 1 << 20, 100 << 20, 1 << 30, 8 << 30, 1 << 50} {
		d := nextLook(free)
		if d < last || d < shortLook || d > longLook {
			t.Errorf("with %d bytes free: %v, and %v with less", free, d, last)
		}
		last = d
	}
	for _, limit := range []int64{64 << 20, 300 << 20, 2 << 30, 1 << 40} {
		if r := reserve(limit); r <= 0 || r > limit/4 {
			t.Errorf("of %d bytes %d are reserved", limit, r)
		}
	}
}

// TestLimitRaised: the limit may be raised while the watch waits for its turn. Then no process is
// ended for the old one. The old limit is not set again either.
func TestLimitRaised(t *testing.T) {
	for _, limit := range []int64{300 << 20, 600 << 20} {
		g := memoryGroup{dir: t.TempDir(), v1: true, limit: 300 << 20}
		for name, text := range map[string]string{"memory.usage_in_bytes": "299000000\n", "memory.stat": "total_rss 299000000\n"} {
			if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w := &memoryWatch{record: &record{state: State{MemoryLimit: limit}}, moves: &moves{}}
		w.relieve(t.Context(), nil, &g, eventLog{})
		w.moves.turn.Lock()
		w.relieve(t.Context(), nil, &g, eventLog{})
		w.moves.turn.Unlock()
		held := w.hold(&g)
		_, err := os.Lstat(filepath.Join(g.dir, "memory.limit_in_bytes"))
		if same := limit == g.limit; w.isShort() != same || held != same || (err == nil) != same {
			t.Errorf("with %d bytes of now %d: a process is to end: %v; the limit is held: %v, and was set: %v", g.limit, limit, w.isShort(), held, err)
		}
	}
}

// The guest's report of a process that it has ended is bounded, and fit to be shown.
func TestReadMemoryKill(t *testing.T) {
	k, err := readMemoryKill(strings.NewReader(`{"name":"\u001b[31mred\n","pid":7,"resident_bytes":5,"session":"12"}`))
	if err != nil || k.Name != "?[31mred?" || k.PID != 7 || k.ResidentBytes != 5 || k.Session != "12" {
		t.Errorf("got %+v, %v", k, err)
	}
	for _, text := range []string{"", "{}", `{"name":"x","pid":0}`, `{"name":"x","pid":99999999}`, `{"name":"","pid":7}`, `{"name":"x","pid":7,"resident_bytes":-1}`,
		`{"name":"` + strings.Repeat("x", maxOwnerAnswer) + `","pid":7}`} {
		if k, err := readMemoryKill(strings.NewReader(text)); err == nil {
			t.Errorf("%.40q passes for %+v", text, k)
		}
	}
	if k, err := readMemoryKill(strings.NewReader(`{"name":"` + strings.Repeat("n", 200) + `","pid":7}`)); err != nil || len(k.Name) != maxProcessName {
		t.Errorf("got %+v, %v", k, err)
	}
}
