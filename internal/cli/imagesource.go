package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/buildcontext"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// imageKinds are the prefixes of a source, as other tools have them.
var imageKinds = []string{"docker-archive:", "oci-archive:", "oci:"}

// imageSource is an archive of an image, as it is sent.
type imageSource struct {
	io.ReadCloser
	what string
	size int64        // 0: not known
	err  func() error // the error of the writer; nil: there is no writer
}

func (s *imageSource) failed() error {
	if s.err == nil {
		return nil
	}
	_ = s.Close() // so that the writer ends
	return s.err()
}

// isImageSource reports whether an image's reference names a file or folder.
func isImageSource(reference string) bool {
	for _, kind := range imageKinds {
		if strings.HasPrefix(reference, kind) {
			return true
		}
	}
	return reference == "-"
}

// openImage opens a source of an image. The caller closes it.
func openImage(inv *invocation, source string) (*imageSource, error) {
	if source == "-" {
		if f, ok := inv.In.(*os.File); ok && isTerminal(f) {
			return nil, hinted(errors.New("the standard input is a terminal, not an image"), "docker save NAME | cove image import -")
		}
		return &imageSource{ReadCloser: io.NopCloser(inv.In), what: "the image"}, nil
	}
	if dir, ok := strings.CutPrefix(source, "oci:"); ok {
		return packLayout(dir)
	}
	name := strings.TrimPrefix(strings.TrimPrefix(source, "docker-archive:"), "oci-archive:")
	f, err := os.Open(name)
	if err != nil {
		return nil, fail.Wrap("no_file", err, "name an archive of docker save or of an OCI layout, or a tar of a root file system; an image of a registry: cove image pull REFERENCE")
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, errors.Join(err, f.Close())
	case st.IsDir():
		return nil, errors.Join(hinted(fmt.Errorf("%s is a folder", name), "a folder of an OCI layout: cove image import oci:"+name), f.Close())
	}
	return &imageSource{ReadCloser: f, what: filepath.Base(name), size: st.Size()}, nil
}

// packLayout sends the folder of an OCI layout as an archive.
func packLayout(dir string) (*imageSource, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if _, err := root.Stat("index.json"); err != nil {
		return nil, errors.Join(hinted(fmt.Errorf("%s is not a folder of an OCI layout: %w", dir, err), "name the folder that has oci-layout, index.json and blobs"), root.Close())
	}
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := errors.Join(writeLayout(w, root), root.Close())
		_ = w.CloseWithError(err) // never fails
		ended <- err
	}()
	return &imageSource{ReadCloser: r, what: filepath.Base(dir), err: func() error {
		if err := <-ended; err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return fmt.Errorf("read %s: %w", dir, err)
		}
		return nil
	}}, nil
}

// writeLayout writes the files of an OCI layout, and nothing else of the folder.
func writeLayout(w io.Writer, root *os.Root) error {
	out := tar.NewWriter(w)
	add := func(name string) error {
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO is none, and is not waited for
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err == nil && !st.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a file", name)
		}
		if err != nil {
			return err
		}
		_, err = buildcontext.SendFile(out, f, &tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg})
		return err
	}
	for _, name := range []string{"oci-layout", "index.json"} {
		if err := add(name); err != nil {
			return err
		}
	}
	err := fs.WalkDir(root.FS(), "blobs", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return add(name)
	})
	return errors.Join(err, out.Close())
}

// ensureImage makes sure that the server has the image that a new sprite starts from, if any. It
// sets the image's name to the server's. If the server has an image of the name, that is used.
func ensureImage(ctx context.Context, inv *invocation, c *cove.Client, machine *sprites.Config) error {
	if machine == nil || machine.Image == "" || machine.Image == hostBase {
		return nil
	}
	if strings.HasPrefix(machine.Image, "/") || strings.HasPrefix(machine.Image, ".") {
		return fail.Newf("bad_reference", "to give a file or folder: --image docker-archive:"+printable.Word(machine.Image)+", oci-archive:FILE, or oci:DIR", "%q can't be the name of an image", machine.Image)
	}
	all := cove.Images{Client: c}
	if isImageSource(machine.Image) {
		source, err := openImage(inv, machine.Image)
		if err != nil {
			return err
		}
		defer source.Close()
		image, err := importImage(ctx, inv, all, source, "")
		machine.Image = image.Digest
		return err
	}
	_, err := all.Get(ctx, machine.Image)
	if errors.Is(err, sprites.ErrNotFound) {
		_, err = pullImage(ctx, inv, all, machine.Image)
	}
	return err
}
