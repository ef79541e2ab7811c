package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// rootPeek are the bytes of a tar that tell a root file system from an archive of an image.
const rootPeek = 64 << 10

// rootPath is the PATH of an image that was made of a root file system.
const rootPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// rootFolders are names that a root file system has, and no archive of an image.
var rootFolders = map[string]bool{
	"bin": true, "boot": true, "dev": true, "etc": true, "home": true, "lib": true, "lib32": true, "lib64": true, "libx32": true, "media": true, "mnt": true,
	"opt": true, "proc": true, "root": true, "run": true, "sbin": true, "srv": true, "sys": true, "tmp": true, "usr": true, "var": true,
}

// isRoot reports whether a tar with this head is a root file system. It is one if a folder
// of rootFolders comes before any file that an image's archive must have.
func isRoot(head []byte) bool {
	for t := tar.NewReader(bytes.NewReader(head)); ; {
		h, err := t.Next()
		if err != nil {
			return false
		}
		top, below, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), "/")
		switch {
		case top == "manifest.json" || top == "index.json" || top == "oci-layout" || top == "blobs":
			return false
		case rootFolders[top] && (below != "" || h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeSymlink):
			return true
		}
	}
}

// root takes a root file system for an image of one layer, as docker import does.
func (a *archive) root(in io.Reader, buf []byte) error {
	const layer, config, manifest = "layer.tar", "config.json", "manifest.json"
	if err := a.file(layer, in, filepath.Join(a.dir, layer), buf); err != nil {
		return err
	}
	described, err1 := json.Marshal(v1.ConfigFile{
		OS: thisPlatform.OS, Architecture: thisPlatform.Architecture, Config: v1.Config{Env: []string{rootPath}},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{{Algorithm: "sha256", Hex: a.files[layer].digest}}},
		History: []v1.History{{CreatedBy: "import of a root file system"}},
	})
	listed, err2 := json.Marshal([]map[string]any{{"Config": config, "Layers": []string{layer}}})
	return errors.Join(err1, err2,
		a.file(config, bytes.NewReader(described), filepath.Join(a.dir, config), buf),
		a.file(manifest, bytes.NewReader(listed), filepath.Join(a.dir, manifest), buf))
}
