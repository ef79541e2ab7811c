package gitwork

import (
	"bufio"
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// realPack is one that git has made, with deltas in it.
func realPack(f *testing.F) []byte {
	f.Helper()
	dir := f.TempDir()
	script := "git init -q; for i in 1 2 3 4; do seq $i 500 > a; git add a; git -c user.name=a -c user.email=a@b commit -qm $i; done; git repack -adfq; git bundle create -q - HEAD"
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		f.Fatal(err)
	}
	return out
}

// A header is bounded, whatever it is, and names nothing but objects.
func FuzzHeader(f *testing.F) {
	id := strings.Repeat("a", 40)
	f.Add("# v2 git bundle\n-" + id + " comment\n" + id + " refs/cove/a3f7b2/head\n\n")
	f.Add("# v3 git bundle\n@object-format=sha256\n" + strings.Repeat("b", 64) + " refs/x\n\n")
	f.Add("# v3 git bundle\n@filter=blob:none\n\n")
	f.Add("[bundle]\n\tversion = 1\n\turi = http://127.0.0.1/\n")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := readHeader(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		if len(h.refs) > maxBundleRefs || len(h.prereqs) > maxPrereqs {
			t.Errorf("%d refs, %d prerequisites", len(h.refs), len(h.prereqs))
		}
		for ref, id := range h.refs {
			if ref == "" || strings.ContainsAny(ref, "\n") || !isObjectName(id, h.format) {
				t.Errorf("ref %q at %q", ref, id)
			}
		}
		for _, id := range h.prereqs {
			if !isObjectName(id, h.format) {
				t.Errorf("prerequisite %q", id)
			}
		}
	})
}

// A pack that is let through keeps to the limits, and nothing follows it.
func FuzzPack(f *testing.F) {
	bundle := realPack(f)
	_, pack, _ := bytes.Cut(bundle, []byte("\n\n"))
	f.Add(pack)
	f.Add(pack[:len(pack)-25])
	f.Add([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))
	limits := packLimits{objects: 100, object: 1 << 16, inflated: 1 << 18, made: 1 << 18}
	f.Fuzz(func(t *testing.T, data []byte) {
		br := bufio.NewReader(bytes.NewReader(data))
		n, err := scanPack(br, 20, limits)
		if err != nil {
			return
		}
		if n > limits.objects || len(data) < 12+int(n)*2+20 {
			t.Errorf("%d objects in %d bytes", n, len(data))
		}
		if _, err := br.ReadByte(); err == nil {
			t.Error("something follows")
		}
	})
}

// No entry of a tree that checkTree accepts is .git, a folder above, or a path.
func FuzzTree(f *testing.F) {
	id := strings.Repeat("\x01", 20)
	f.Add([]byte("100644 a\x00" + id + "40000 b\x00" + id))
	f.Add([]byte("120000 .gitmodules\x00" + id))
	f.Add([]byte("40000 .g\u200cit\x00" + id))
	f.Add([]byte("160000 sub\x00" + id[:19]))
	f.Fuzz(func(t *testing.T, body []byte) {
		if checkTree(body, 20) != nil {
			return
		}
		entries, ok := parseTree(body, 20)
		if !ok {
			t.Fatal("not a tree")
		}
		for _, e := range entries {
			if e.name == "" || e.name == "." || e.name == ".." || strings.ContainsAny(e.name, "/\x00") || strings.EqualFold(e.name, ".git") || len(e.name) > maxName {
				t.Errorf("let through %q", e.name)
			}
		}
	})
}

// parseDiff does not panic, and accepts no path longer than maxPath, whatever its input.
func FuzzDiff(f *testing.F) {
	f.Add(":100644 100644 " + strings.Repeat("a", 40) + " " + strings.Repeat("b", 40) + " M\x00a b\x001\t2\ta b\x00")
	f.Add(":000000 120000 0 1 A\x00x\x00-\t-\tx\x00")
	f.Fuzz(func(t *testing.T, out string) {
		files, err := parseDiff(out)
		if err != nil {
			return
		}
		for _, file := range files {
			if len(file.Path) > maxPath {
				t.Errorf("a path of %d bytes", len(file.Path))
			}
		}
	})
}

// A pointer of Git LFS leads to a name of 64 digits, and nowhere else.
func FuzzPointer(f *testing.F) {
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 12\n"))
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:../../../../etc/passwd\nsize 12\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if m := pointer().FindSubmatch(body); m != nil && (len(m[1]) != 64 || bytes.ContainsAny(m[1], "/.")) {
			t.Errorf("taken for a name: %q", m[1])
		}
	})
}
