package build

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/dockerfile"
	"github.com/cove-dev/cove/internal/server/dockerfile/source"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// tree opens the files of an image. An empty digest is an image without files.
func (r *run) tree(ctx context.Context, digest string) (source.Tree, func() error, error) {
	var lowers []string
	if digest != "" {
		var err error
		if lowers, err = r.Images.Trees(ctx, digest); err != nil {
			return nil, nil, err
		}
	}
	if len(lowers) == 0 {
		return source.Empty{}, func() error { return nil }, nil
	}
	slices.Reverse(lowers)
	v, err := layers.OpenView(lowers[:1], lowers[1:], r.UserNS)
	if err != nil {
		return nil, nil, err
	}
	return source.NewImage(v), v.Close, nil
}

// context opens the build's context.
func (r *run) context() (source.Tree, func() error, error) {
	root, err := os.OpenRoot(filepath.Join(r.dir, contextFolder))
	if err != nil {
		return nil, nil, err
	}
	return source.Context{Root: root}, root.Close, nil
}

// origin opens the tree that a Copy takes its files from.
func (r *run) origin(ctx context.Context, c *dockerfile.Copy) (source.Tree, func() error, error) {
	if id := r.imageOf(c); id != "" || c.FromStage >= 0 {
		return r.tree(ctx, id)
	}
	return r.context()
}

// imageOf is the image that a Copy has its files from; empty: none.
func (r *run) imageOf(c *dockerfile.Copy) string {
	switch {
	case c.FromImage != "":
		return r.images[c.FromImage]
	case c.FromStage >= 0:
		return r.made[c.FromStage]
	}
	return ""
}

// filesDigest is a digest of the files that a Copy takes from elsewhere.
func (r *run) filesDigest(ctx context.Context, c *dockerfile.Copy) (digest string, err error) {
	from, end, err := r.origin(ctx, c)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, end()) }()
	return source.Digest(ctx, *c, from)
}

// mounted is a digest of the context's files that a command's mounts show.
func (r *run) mounted(ctx context.Context, c *dockerfile.Run) (string, error) {
	var all []string
	for _, m := range c.Mounts {
		if m.Type != dockerfile.MountBind {
			continue
		}
		if err := r.hasNoLinks(m.Source); err != nil {
			return "", err
		}
		digest, err := r.filesDigest(ctx, &dockerfile.Copy{FromStage: -1, Context: true, Sources: []string{m.Source}})
		if err != nil {
			return "", err
		}
		all = append(all, digest)
	}
	return strings.Join(all, " "), nil
}

// hasNoLinks refuses a path in the context that leads through a symbolic link, which would lead
// elsewhere in the sandbox.
func (r *run) hasNoLinks(name string) error {
	root, err := os.OpenRoot(filepath.Join(r.dir, contextFolder))
	if err != nil {
		return err
	}
	defer root.Close()
	at := strings.TrimPrefix(path.Join("/", name), "/")
	for i := range len(at) + 1 {
		if i < len(at) && at[i] != '/' || i == 0 {
			continue
		}
		st, err := root.Lstat(at[:i])
		if err == nil && st.Mode()&os.ModeSymlink != 0 {
			return fail.Newf("dockerfile_unsupported", "mount what the link leads to", "RUN --mount=type=bind of %.200q, which is a symbolic link, is not supported", at[:i])
		}
		if err != nil {
			return fail.Newf("dockerfile_bad", "see .dockerignore", "a RUN mounts %.200q, which does not exist or is ignored", at[:i])
		}
	}
	return nil
}

// copyFiles writes the layer of a COPY or an ADD.
func (r *run) copyFiles(ctx context.Context, c *dockerfile.Copy, parent string, w io.Writer) (err error) {
	from, end, err := r.origin(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	to, close, err := r.tree(ctx, parent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, close()) }()
	return source.Layer(ctx, w, *c, from, to)
}

// makeFolder writes the layer of a WORKDIR; it has nothing if the folder is there.
func (r *run) makeFolder(ctx context.Context, s dockerfile.Step, parent string, w io.Writer) (err error) {
	to, end, err := r.tree(ctx, parent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return source.Folder(w, s.Folder, s.Config.User, to)
}
