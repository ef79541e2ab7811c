package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/cove-dev/cove/internal/server/dockerfile"
)

// Digest is of the files that a copy has from a tree: their names, modes, owners, links, extended
// attributes and bytes, and not their times. Two copies of one digest, and otherwise the same,
// make the same over one parent.
func Digest(ctx context.Context, c dockerfile.Copy, from Tree) (string, error) {
	sum := sha256.New()
	out := json.NewEncoder(sum)
	sources, err := resolve(c, from)
	if err != nil {
		return "", err
	}
	buf := make([]byte, 64<<10)
	for _, s := range sources {
		if err := out.Encode([][]byte{[]byte(s.name), []byte(s.include)}); err != nil {
			return "", err
		}
		links := map[[2]uint64]string{}
		w := &walk{ctx: ctx, from: from, visit: func(rel string, info Info, open func() (io.ReadCloser, error)) error {
			first := ""
			if info.Inode != [2]uint64{} {
				if first = links[info.Inode]; first == "" {
					links[info.Inode] = rel
				}
			}
			var attrs [][2][]byte
			for _, name := range slices.Sorted(maps.Keys(info.Attrs)) {
				if carried(name) {
					attrs = append(attrs, [2][]byte{[]byte(name), []byte(info.Attrs[name])})
				}
			}
			size := info.Size
			if !info.Mode.IsRegular() {
				size = 0
			}
			err := out.Encode(struct {
				Name, Target, First []byte
				Mode                uint32
				UID, GID            int
				Size                int64
				Attrs               [][2][]byte
			}{[]byte(rel), []byte(info.Target), []byte(first), uint32(info.Mode), info.UID, info.GID, size, attrs})
			if err != nil || first != "" || !info.Mode.IsRegular() {
				return err
			}
			f, err := open()
			if err != nil {
				return fmt.Errorf("read %.300q: %w", rel, err)
			}
			defer f.Close()
			if _, err := io.CopyBuffer(struct{ io.Writer }{sum}, io.LimitReader(contextReader{ctx, f}, size), buf); err != nil {
				return fmt.Errorf("read %.300q: %w", rel, err)
			}
			return nil
		}}
		if err := w.begin(s, c.Exclude); err != nil {
			return "", err
		}
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}
