// Package guestbin finds cove's guest in a sprite, or brings it there: what works
// inside a sprite (the far end of a sync, the supervisor of a job) is one static
// program. A sprite of cove's has it. To another backend's it is uploaded once,
// under a name that says its digest.
package guestbin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/sprites"
)

const name = "cove-guest"

// undoLimit is for how long what is left of an upload that failed is cleared away.
const undoLimit = 10 * time.Second

// inHome is the folder, in the home of a sprite's user, that uploaded ones are in.
const inHome = ".local/share/cove/guest"

// Find returns the path of the guest in a sprite, which it uploads if the sprite
// has none: the one beside this program.
func Find(ctx context.Context, sprite *sprites.Sprite) (string, error) {
	own := boot.BinDir + "/" + name
	info, err := sprite.Stat(ctx, own)
	if err == nil && info.Mode().IsRegular() {
		return own, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for %s in the sprite: %w", name, err)
	}
	return Bring(ctx, sprite)
}

// Bring is Find for who needs the very guest that is beside this program.
func Bring(ctx context.Context, sprite *sprites.Sprite) (string, error) {
	return BringProgram(ctx, sprite, name)
}

// BringProgram is Bring for another program of cove's, which no sprite has.
func BringProgram(ctx context.Context, sprite *sprites.Sprite, name string) (string, error) {
	file, err := beside(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	return upload(ctx, sprite, name, file)
}

// beside opens a program in the folder of this one.
func beside(name string) (*os.File, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	file, err := os.Open(filepath.Join(filepath.Dir(exe), name))
	if err != nil {
		return nil, fmt.Errorf("the sprite has no %s, and it is not beside cove to be uploaded: %w", name, err)
	}
	return file, nil
}

// Upload brings a guest into a sprite, unless it is there, and returns its path.
// What is there afterwards has been read back and compared.
func Upload(ctx context.Context, sprite *sprites.Sprite, file io.ReadSeeker) (string, error) {
	return upload(ctx, sprite, name, file)
}

func upload(ctx context.Context, sprite *sprites.Sprite, name string, file io.ReadSeeker) (_ string, err error) {
	digest, size, err := digestOf(file)
	if err != nil {
		return "", err
	}
	there := inHome + "/" + name + "-" + hex.EncodeToString(digest[:])
	path := "/home/sprite/" + there
	info, err := sprite.Stat(ctx, path)
	if err == nil && info.Mode().IsRegular() && info.Size() == size && info.Mode().Perm()&0o111 != 0 {
		return path, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for %s in the sprite: %w", name, err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	// Under a name of its own first: what has the other one is whole.
	part := path + "." + rand.Text() + ".part"
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
			defer cancel()
			_ = sprite.Remove(undo, part, false) // it may not be there, nor the sprite
		}
	}()
	if err := sprite.WriteFile(ctx, part, file, sprites.WriteOptions{Mode: 0o755, Size: size}); err != nil {
		return "", fmt.Errorf("upload %s: %w", name, err)
	}
	back, err := sprite.Open(ctx, part)
	if err != nil {
		return "", fmt.Errorf("read %s back: %w", name, err)
	}
	sum := sha256.New()
	_, err = io.Copy(sum, io.LimitReader(back, size+1))
	if err := errors.Join(err, back.Close()); err != nil {
		return "", fmt.Errorf("read %s back: %w", name, err)
	}
	if [32]byte(sum.Sum(nil)) != digest {
		return "", fmt.Errorf("upload %s: the sprite has something else than was sent", name)
	}
	if err := sprite.Rename(ctx, part, path); err != nil {
		return "", fmt.Errorf("upload %s: %w", name, err)
	}
	return path, nil
}

func digestOf(file io.ReadSeeker) (digest [32]byte, size int64, err error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return digest, 0, err
	}
	sum := sha256.New()
	size, err = io.Copy(sum, file)
	copy(digest[:], sum.Sum(nil))
	return digest, size, err
}
