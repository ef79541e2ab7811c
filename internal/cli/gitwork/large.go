package gitwork

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// LargeFile is a file of Git LFS: the repository has a pointer to it, and its
// content is elsewhere, named by its SHA-256.
type LargeFile struct {
	Path string
	OID  string
	Size int64

	blob string // of the pointer
}

// maxPointer bounds a pointer, as git-lfs does.
const maxPointer = 1024

var pointer = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\Aversion https://git-lfs\.github\.com/spec/v1\n(?:ext-\d-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize (\d{1,18})\n\z`)
})

// LargeFiles lists the large files in a commit's tree, each content once. It looks for
// none if nothing says that Git LFS is in use (usesLFS).
func (r *Repo) LargeFiles(ctx context.Context, commit string) ([]LargeFile, error) {
	if in, err := r.usesLFS(ctx, commit); err != nil || !in {
		return nil, err
	}
	s, err := r.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	var files []File
	w := &recordWriter{each: func(entry string) {
		what, path, _ := strings.Cut(entry, "\t")
		if fields := strings.Fields(what); len(fields) == 3 {
			files = append(files, File{Path: path, mode: fields[0], blob: fields[2]})
		}
	}}
	if _, err := s.git.run(ctx, call{args: []string{"ls-tree", "-r", "-z", "--full-tree", commit}, stdout: w, timeout: patiently}); err != nil {
		return nil, fmt.Errorf("look for large files: %w", err)
	}
	return s.pointersAmong(ctx, files)
}

// LargeFilesAmong is LargeFiles for the files that changed up to a commit.
func (r *Repo) LargeFilesAmong(ctx context.Context, commit string, files []File) ([]LargeFile, error) {
	if in, err := r.usesLFS(ctx, commit); err != nil || !in {
		return nil, err
	}
	s, err := r.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	return s.pointersAmong(ctx, files)
}

// usesLFS reports whether the clone has content of Git LFS, or the commit's own
// attributes speak of it.
func (r *Repo) usesLFS(ctx context.Context, commit string) (bool, error) {
	if exists(r.largeDir()) {
		return true, nil
	}
	text, err := r.git.text(ctx, "cat-file", "blob", commit+":.gitattributes")
	if exitCode(err) > 0 {
		return false, nil // there is none
	}
	return strings.Contains(text, "filter=lfs"), err
}

// pointersAmong reads those of the files that are small enough to be pointers.
func (s *scratch) pointersAmong(ctx context.Context, files []File) ([]LargeFile, error) {
	var ask strings.Builder
	paths := map[string]string{} // by blob
	for _, f := range files {
		if (f.mode == "100644" || f.mode == "100755") && paths[f.blob] == "" {
			paths[f.blob] = f.Path
			ask.WriteString(f.blob + "\n")
		}
	}
	var small []string
	w := &recordWriter{end: '\n', each: func(line string) {
		id, size, _ := strings.Cut(line, " ")
		if n, err := strconv.Atoi(size); err == nil && n <= maxPointer {
			small = append(small, id)
		}
	}}
	_, err := s.git.run(ctx, call{
		args: []string{"cat-file", "--batch-check=%(objectname) %(objectsize)", "--buffer"}, stdin: strings.NewReader(ask.String()), stdout: w, timeout: patiently,
	})
	if err != nil {
		return nil, fmt.Errorf("look for large files: %w", err)
	}
	objects := s.objects(ctx)
	defer objects.close()
	var list []LargeFile
	for _, id := range small {
		body, _, err := objects.read(id, "blob", maxPointer)
		if err != nil {
			return nil, fmt.Errorf("look for large files: %w", err)
		}
		if m := pointer().FindSubmatch(body); m != nil {
			size, _ := strconv.ParseInt(string(m[2]), 10, 64) // of so many digits it is one
			list = append(list, LargeFile{Path: paths[id], OID: string(m[1]), Size: size, blob: id})
		}
	}
	return list, nil
}

// largeDir is where git-lfs keeps its objects.
func (r *Repo) largeDir() string {
	storage := r.config.values["lfs.storage"]
	switch {
	case storage == "":
		storage = filepath.Join(r.CommonDir, "lfs")
	case !filepath.IsAbs(storage):
		storage = filepath.Join(r.CommonDir, storage)
	}
	return filepath.Join(storage, "objects")
}

func (r *Repo) largePath(oid string) string {
	return filepath.Join(r.largeDir(), oid[:2], oid[2:4], oid)
}

// OpenLarge opens the content of a large file, fs.ErrNotExist if it is not here.
func (r *Repo) OpenLarge(f LargeFile) (*os.File, error) {
	file, err := os.Open(r.largePath(f.OID))
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || info.Size() != f.Size {
		_ = file.Close()
		return nil, errors.Join(err, os.ErrNotExist) // a download that was cut off
	}
	return file, nil
}

// isIn reports whether a file in root has the content.
func (f LargeFile) isIn(root *os.Root, path string) bool {
	file, err := root.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() != f.Size {
		return false
	}
	sum := sha256.New()
	n, err := io.Copy(sum, file)
	return err == nil && n == f.Size && hex.EncodeToString(sum.Sum(nil)) == f.OID
}

// StoreLarge keeps the content of a large file where git-lfs finds it. Content that
// is not the pointer's is a *RejectedError.
func (r *Repo) StoreLarge(f LargeFile, from io.Reader) error {
	tmp, err := r.TempFile("large-")
	if err != nil {
		return err
	}
	defer tmp.Remove()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(tmp, sum), io.LimitReader(from, f.Size+1))
	if err != nil {
		return fmt.Errorf("get the large file %s: %w", printable.Name(f.Path), err)
	}
	if n != f.Size || hex.EncodeToString(sum.Sum(nil)) != f.OID {
		return rejected("the large file %s is not what its pointer says", f.Path)
	}
	to := r.largePath(f.OID)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := tmp.Chmod(0o644); err != nil {
		return err
	}
	return moveFile(tmp.Name(), to)
}
