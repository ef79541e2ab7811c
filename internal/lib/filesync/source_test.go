package filesync

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// kept is a conn that keeps what is sent.
type kept struct{ frames []frame }

func (k *kept) send(f frame) error {
	f.data = slices.Clone(f.data)
	k.frames = append(k.frames, f)
	return nil
}
func (k *kept) flush() error         { return nil }
func (k *kept) recv() (frame, error) { panic("nothing is to be received") }

// A file that has changed since it was seen is told of, by itself or among others,
// and no pack without a file goes out.
func TestProvideChanged(t *testing.T) {
	for _, test := range []struct{ name, files, frames string }{ // m: moved since, s: the same
		{"alone", "m", "N"}, {"the first", "ms", "NP"}, {"the last", "sm", "PN"}, {"between", "sms", "PNP"}, {"all", "mm", "NN"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			tree, err := openTree(root)
			if err != nil {
				t.Fatal(err)
			}
			defer tree.close()
			k := &kept{}
			p := &provider{c: k, t: tree}
			for n, c := range test.files {
				name := string(rune('a' + n))
				if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				now, err := tree.lstat(name)
				if err != nil {
					t.Fatal(err)
				}
				w := want{n: int64(n), path: name, seen: now.stamp()}
				if c == 'm' {
					w.seen.Mtime--
				}
				if err := p.file(&w); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.flush(); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, f := range k.frames {
				switch {
				case f.kind == kindPack && len(f.data) > 0:
					got += "P"
				case f.kind == kindNone:
					got += "N"
				default:
					t.Errorf("a frame %q of %d bytes", f.kind, len(f.data))
				}
			}
			if got != test.frames {
				t.Errorf("the frames are %s, want %s", got, test.frames)
			}
		})
	}
}
