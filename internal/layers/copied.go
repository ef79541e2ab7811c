package layers

import (
	"context"
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// Copied returns how many bytes of files the upper folder has in the place of those
// of the same name in the layer below it: what was written of them since, or copied
// because they were open for writing. It may be written meanwhile; with an error comes
// what was counted until then.
func (o Overlay) Copied(ctx context.Context) (bytes int64, err error) {
	upper, err := openTree(o.Upper)
	if err != nil {
		return 0, err
	}
	below, err := openTree(o.Lowers[0])
	if err != nil {
		return 0, errors.Join(err, upper.close())
	}
	err = eachCopied(ctx, upper, below, func(there Stat) { bytes += min(there.Size, there.blocks*512) })
	return bytes, errors.Join(err, upper.close(), below.close())
}

// eachCopied calls f with each file of below that has another in its place.
func eachCopied(ctx context.Context, upper, below *tree, f func(Stat)) error {
	stat := func(t *tree, name string) (st Stat, err error) {
		err = t.at(name, func(fd int) (err error) {
			st, err = statOf(fd)
			return err
		})
		return st, err
	}
	for dirs := []string{""}; len(dirs) > 0; {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		names, err := upper.names(dir)
		if err != nil && !gone(err) {
			return err
		}
		for _, name := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			name = path.Join(dir, name)
			here, err := stat(upper, name)
			if err != nil {
				continue // it is gone
			}
			there, err := stat(below, name)
			switch {
			case err != nil || here.Kind() != there.Kind():
			case here.IsDir():
				dirs = append(dirs, name)
			case here.Kind() == unix.S_IFREG:
				f(there)
			}
		}
	}
	return nil
}
