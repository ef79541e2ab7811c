// Package guestbin finds cove's guest in a sprite, or brings it there. One static program does
// all work inside a sprite (the far end of a sync, the supervisor of a job). A sprite of
// cove's has it. To another backend's sprite it is uploaded once, under a name with its
// digest. Beside this program is a guest for its own architecture (cove-guest), and one for
// each other (cove-guest-arm64).
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
	"runtime"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

const name = "cove-guest"

// undoLimit bounds the time for removing the rest of a failed upload.
const undoLimit = 10 * time.Second

// inHome is the folder, in the home of a sprite's user, that uploaded ones are in.
const inHome = ".local/share/cove/guest"

// Find returns the path of the guest in a sprite. If the sprite has none, it uploads the one
// beside this program.
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

// Bring is Find for callers that need exactly the guest that is beside this program.
func Bring(ctx context.Context, sprite *sprites.Sprite) (string, error) {
	return BringProgram(ctx, sprite, name)
}

// BringProgram is Bring for another program of cove's, which no sprite has.
func BringProgram(ctx context.Context, sprite *sprites.Sprite, name string) (string, error) {
	arch, err := Arch(ctx, sprite)
	if err != nil {
		return "", err
	}
	return Program{Name: name, Arch: arch}.Bring(ctx, sprite)
}

// Program is one of cove's programs for one kind of sprite.
type Program struct {
	Name string // empty: the guest
	Arch string // of the sprite, as Go calls it; empty: as this program's

	// Progress, unless nil, is called with how much of the program has been sent, again from 0
	// if it is sent again. It is not called if the sprite has the program.
	Progress func(sent, size int64)
}

// Bring uploads the program, unless the sprite has it, and returns its path. It takes the file
// beside this program. For another architecture the file's name ends with that.
func (p Program) Bring(ctx context.Context, sprite *sprites.Sprite) (string, error) {
	if p.Name == "" {
		p.Name = name
	}
	file, err := beside(p.Name, p.Arch)
	if err != nil {
		return "", err
	}
	defer file.Close()
	return p.upload(ctx, sprite, file)
}

// beside opens a program in the folder of this one.
func beside(name, arch string) (*os.File, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	foreign := arch != "" && arch != runtime.GOARCH
	full := name
	if foreign {
		full += "-" + arch
	}
	file, err := os.Open(filepath.Join(filepath.Dir(exe), full))
	if foreign && errors.Is(err, fs.ErrNotExist) {
		return nil, fail.Newf(wrongArch, "in cove's sources: make install FOREIGN='"+foreignPrograms(name)+"'",
			"the sprite has the architecture %s and needs %s, which is not beside cove", arch, full)
	}
	if err != nil {
		return nil, fmt.Errorf("the sprite has no %s, and none can be uploaded from beside cove: %w", full, err)
	}
	return file, nil
}

// foreignPrograms are the programs to build for other architectures so that program is there.
func foreignPrograms(program string) string {
	if program == name {
		return name
	}
	return name + " " + program
}

// wrongArch is the code for a sprite whose architecture no program here is for.
const wrongArch = "wrong_arch"

// machines are what uname calls the architectures that cove is built for.
var machines = map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

// Arch asks a sprite for its architecture, and returns it as Go calls it. If the sprite can't
// say, Arch assumes this program's: the start of a program will tell.
func Arch(ctx context.Context, sprite *sprites.Sprite) (string, error) {
	out, err := sprite.CommandContext(ctx, "uname", "-m").Output()
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		return runtime.GOARCH, nil
	} else if err != nil {
		return "", fmt.Errorf("ask for the architecture of the sprite: %w", err)
	}
	machine := strings.TrimSpace(string(out[:min(len(out), 64)]))
	arch, ok := machines[machine]
	if !ok {
		return "", fail.Newf(wrongArch, "choose a backend with sprites for amd64 or arm64", "the sprite %s has the architecture %.40q, but cove's programs for sprites are only for amd64 and arm64", sprite.Name(), machine)
	}
	return arch, nil
}

// Upload brings a guest into a sprite, unless it is there, and returns its path.
// The file has been read back and compared.
func Upload(ctx context.Context, sprite *sprites.Sprite, file io.ReadSeeker) (string, error) {
	return Program{Name: name}.upload(ctx, sprite, file)
}

func (p Program) upload(ctx context.Context, sprite *sprites.Sprite, file io.ReadSeeker) (_ string, err error) {
	name := p.Name
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
	// Under a name of its own first: a file with the final name is always whole.
	part := path + "." + rand.Text() + ".part"
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
			defer cancel()
			_ = sprite.Remove(undo, part, false) // it may not be there, nor the sprite
		}
	}()
	var body io.Reader = file
	if p.Progress != nil {
		body = &counter{r: file, size: size, told: p.Progress}
	}
	if err := sprite.WriteFile(ctx, part, body, sprites.WriteOptions{Mode: 0o755, Size: size}); err != nil {
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
		return "", fmt.Errorf("upload %s: the file in the sprite differs from the one that was sent", name)
	}
	if err := sprite.Rename(ctx, part, path); err != nil {
		return "", fmt.Errorf("upload %s: %w", name, err)
	}
	return path, nil
}

// counter tells how much has been read.
type counter struct {
	r    io.Reader
	n    int64
	size int64
	told func(n, size int64)
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.told(c.n, c.size)
	return n, err
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
