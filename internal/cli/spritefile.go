package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// spriteFileName is the file that `cove use` writes.
const spriteFileName = ".sprite"

// spriteFile notes which sprite the commands in a folder, and below it, mean.
type spriteFile struct {
	Sprite string `json:"sprite"`
}

var namePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })

// checkName says what is wrong with a sprite's name.
func checkName(name string) error {
	if namePattern().MatchString(name) {
		return nil
	}
	return fail.Newf("bad_name", nameHint, "%q can't be a sprite's name", name)
}

const nameHint = "a name is a DNS label: lower-case letters, digits and hyphens, 63 at most, with a letter or digit at either end"

// chosenSprite is the sprite in use, which an argument, -s, the environment or a .sprite file
// chooses.
type chosenSprite struct {
	global *globals
	out    *printer
	hints  *hinter
	saidOf map[string]bool // .sprite files that were said to be ignored
}

// name is the sprite that a command is about: that of -s, of COVE_SPRITE, or of
// the nearest .sprite file upwards. Hints then name it.
func (s *chosenSprite) name(ctx context.Context) (string, error) {
	name, err := s.find(ctx)
	if err == nil {
		s.hints.about = name
	}
	return name, err
}

func (s *chosenSprite) find(ctx context.Context) (string, error) {
	if s.global.sprite != "" {
		return s.global.sprite, checkName(s.global.sprite)
	}
	if name := environmentSprite(); name != "" {
		return name, checkName(name)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	file, name, err := s.findFile(ctx, dir)
	if err != nil {
		return "", err
	}
	if file == "" {
		return "", fail.New("no_sprite", "which sprite?", "-s NAME, or note one for this folder: cove use NAME")
	}
	s.out.detail("sprite %s, from %s", name, file)
	return name, nil
}

// findFile looks for the nearest .sprite file from dir upwards; file is empty if there is
// none. It skips folders of that name. It also skips a file that git tracks, or that
// belongs to another user, and says so once. Somebody else may have put such a file there,
// to choose where this user's commands go.
func (s *chosenSprite) findFile(ctx context.Context, dir string) (file, name string, err error) {
	for {
		file = filepath.Join(dir, spriteFileName)
		info, err := os.Lstat(file)
		if err == nil && !info.IsDir() {
			why, err := notOurs(ctx, file, info)
			if err != nil {
				return "", "", err
			}
			if why == "" {
				name, err = readSpriteFile(file)
				return file, name, err
			}
			if !s.saidOf[file] {
				if s.saidOf == nil {
					s.saidOf = map[string]bool{}
				}
				s.saidOf[file] = true
				s.out.warn("Ignored %s, which %s. Choose a sprite with -s NAME, or: git rm --cached .sprite && cove use NAME", printable.Name(file), why)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return "", "", err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", "", nil
		}
		dir = parent
	}
}

// notOurs says why a .sprite file may be somebody else's choice; empty: it is not.
func notOurs(ctx context.Context, file string, info fs.FileInfo) (string, error) {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Sprintf("belongs to user %d", sys.Uid), nil
	}
	if !info.Mode().IsRegular() {
		return "is not a file", nil
	}
	tracked, err := gitwork.Tracks(ctx, file)
	if err != nil {
		return "", fmt.Errorf("ask git for %s: %w", file, err)
	}
	if tracked {
		return "git tracks: the repository would choose the sprite", nil
	}
	return "", nil
}

func readSpriteFile(file string) (string, error) {
	text, err := datafolder.ReadSmall(file)
	if err != nil {
		return "", err
	}
	var doc spriteFile
	if err := json.Unmarshal([]byte(text), &doc); err != nil || !namePattern().MatchString(doc.Sprite) {
		return "", fail.Newf("bad_sprite_file", "write it anew: cove use NAME", "%s does not name a sprite", file)
	}
	return doc.Sprite, nil
}

// writeSpriteFile notes a sprite for dir, in one step.
func writeSpriteFile(dir, name string) (string, error) {
	text, err := json.Marshal(spriteFile{Sprite: name})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, spriteFileName)
	return file, atomicfile.Write(file, append(text, '\n'), 0o644)
}

var jobPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{6}$`) })

// checkJob says what is wrong with a job's id.
func checkJob(id string) error {
	if jobPattern().MatchString(id) {
		return nil
	}
	return fail.Newf("bad_job", "cove job list", "%q is not a job's id, which has six hexadecimal digits like a3f7b2", id)
}

// checkSession says what is wrong with a session's id. It checks little, because the
// server chooses the form of its ids.
func checkSession(id string) error {
	if id == "" || len(id) > 200 || printable.Line(id) != id {
		return fail.Newf("bad_session", "cove session list", "%q is not a session's id", id)
	}
	return nil
}

// handle is the sprite in use, on a client.
func (s *chosenSprite) handle(ctx context.Context, c *cove.Client) (*sprites.Sprite, error) {
	name, err := s.name(ctx)
	if err != nil {
		return nil, err
	}
	return c.Sprite(name), nil
}
