package gitwork

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// Repo is a repository on the person's machine, seen from one of its work trees.
// Its methods may be called from several goroutines; those that change something
// serialise by Lock, which their callers hold.
type Repo struct {
	Dir       string // top of the work tree; of a bare repository its own folder
	GitDir    string // of this work tree
	CommonDir string // of all its work trees
	Shallow   bool   // a part of the history is not here
	Bare      bool   // there is no work tree

	format string // sha1 or sha256
	major  int    // git's version
	minor  int
	config configuration
	git    runner
	around *Repo // the repository that has it as a submodule; nil: none is known

	looking sync.Mutex
	tops    []string  // of the repository's work trees; guarded by looking
	found   *programs // in them; nil: not looked for yet; guarded by looking

	// step is called with a name before each step of a fast-forward. Tests end
	// the process there.
	step func(name string)
}

// Open finds the repository that dir is in, as git does. ErrNotRepository says that
// there is none to work in.
func Open(ctx context.Context, dir string) (*Repo, error) {
	major, minor, err := Version(ctx)
	if err != nil {
		return nil, err
	}
	exe, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open repository: %w", err)
	}
	r := &Repo{major: major, minor: minor, git: runner{exe: exe, dir: dir}, step: func(string) {}}
	if err := r.discover(ctx, dir); err != nil {
		return nil, err
	}
	if r.config, err = readConfig(ctx, r.git); err != nil {
		return nil, fmt.Errorf("open repository %s: %w", printable.Name(r.Dir), err)
	}
	r.git = runner{exe: exe, dir: r.Dir, gitDir: r.GitDir, settings: r.config.settings()}
	if !r.Bare {
		r.git.workTree = r.Dir
	}
	return r, nil
}

// Top returns the top of the work tree that dir is in. It is empty if dir is in no work
// tree, if git does not trust the work tree, or if there is no git.
func Top(ctx context.Context, dir string) (string, error) {
	exe, err := exec.LookPath("git")
	if err != nil {
		return "", nil
	}
	out, err := runner{exe: exe, dir: dir}.run(ctx, call{args: []string{"rev-parse", "--show-toplevel"}, plain: true})
	if exitCode(err) > 0 {
		return "", nil
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// Tracks reports whether a file is in the index of its repository. It is false if there is
// no repository that git trusts. No program that the repository's configuration names runs.
func Tracks(ctx context.Context, file string) (bool, error) {
	exe, err := exec.LookPath("git")
	if err != nil {
		return false, nil
	}
	out, err := runner{exe: exe, dir: filepath.Dir(file)}.run(ctx, call{plain: true, args: []string{
		"-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit",
		"ls-files", "-z", "--cached", "--", ":(literal)" + filepath.Base(file),
	}})
	if exitCode(err) > 0 {
		return false, nil
	}
	return len(out) > 0, err
}

// Exclude makes git ignore all files with the name of file, if git does not ignore file yet. It
// adds a line to the repository's own info/exclude, which no commit has, and returns that path.
// The path is empty if there is no repository, or if git ignores the file already.
func Exclude(ctx context.Context, file string) (exclude string, err error) {
	exe, err := exec.LookPath("git")
	if err != nil {
		return "", nil
	}
	g := runner{exe: exe, dir: filepath.Dir(file)}
	safe := []string{"-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit"}
	_, err = g.run(ctx, call{plain: true, args: append(safe, "check-ignore", "-q", "--", filepath.Base(file))})
	if exitCode(err) != 1 { // 0: it is ignored; 128: no work tree
		if exitCode(err) > 0 {
			err = nil
		}
		return "", err
	}
	out, err := g.run(ctx, call{plain: true, args: append(safe, "rev-parse", "--path-format=absolute", "--git-path", "info/exclude")})
	if err != nil {
		return "", err
	}
	exclude = strings.TrimSuffix(string(out), "\n")
	if err := os.MkdirAll(filepath.Dir(exclude), 0o777); err != nil {
		return "", err
	}
	text, err := os.ReadFile(exclude)
	if err != nil && !isNotExist(err) {
		return "", err
	}
	line := filepath.Base(file) + "\n"
	if len(text) > 0 && text[len(text)-1] != '\n' {
		line = "\n" + line
	}
	f, err := os.OpenFile(exclude, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(line)
	return exclude, errors.Join(err, f.Close())
}

// discover lets plain git find the repository, so that its rules hold: how far
// up, and whose repositories are trusted. Afterwards it is named explicitly.
func (r *Repo) discover(ctx context.Context, dir string) error {
	ask := func(args ...string) ([]string, error) {
		out, err := r.git.run(ctx, call{args: append([]string{"rev-parse", "--path-format=absolute"}, args...), plain: true})
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if err == nil && len(lines) != len(args) {
			err = fmt.Errorf("the path of the repository of %s has a line end in it", printable.Name(dir))
		}
		return lines, err
	}
	is, err := ask("--absolute-git-dir", "--git-common-dir", "--show-object-format", "--is-bare-repository", "--is-shallow-repository")
	if err != nil {
		if exitCode(err) < 0 {
			return err
		}
		e := &fail.Error{Code: ErrNotRepository.Code, Message: printable.Name(dir) + " is not in a git repository",
			Hint: "cd into one, or make one: git init && git add -A && git commit"}
		if text := err.Error(); strings.Contains(text, "dubious ownership") {
			e.Message, e.Hint = "git does not trust the repository of "+printable.Name(dir)+": it belongs to another user",
				"git config --global --add safe.directory "+printable.Word(dir)
		} else if !strings.Contains(text, "not a git repository") {
			e.Message += " that git can read: " + text
		}
		return e
	}
	r.GitDir, r.CommonDir, r.format = is[0], is[1], is[2]
	r.Bare, r.Shallow = is[3] == "true", is[4] == "true"
	if r.Bare {
		r.Dir = r.GitDir
		return nil
	}
	top, err := ask("--show-toplevel")
	if err != nil && exitCode(err) < 0 {
		return err
	}
	if r.Dir = top[0]; err != nil || r.Dir == "" {
		return &fail.Error{Code: ErrNotRepository.Code, Message: printable.Name(dir) + " is inside a git directory, not in a work tree",
			Hint: "cd into the work tree"}
	}
	return nil
}

// Name is what people call the repository: the name of its folder.
func (r *Repo) Name() string {
	name := filepath.Base(r.Dir)
	if r.Bare {
		name = strings.TrimSuffix(name, ".git")
	}
	return name
}

// Head returns the short name of the branch that is checked out, and its commit. If HEAD
// is detached, branch is empty. If the branch has no commit, the error is ErrEmpty.
func (r *Repo) Head(ctx context.Context) (branch, commit string, err error) {
	ref, err := r.git.text(ctx, "symbolic-ref", "-q", "HEAD")
	if err != nil && exitCode(err) != 1 {
		return "", "", err
	}
	if err != nil {
		commit, err = r.Resolve(ctx, "HEAD")
		return "", commit, err
	}
	branch, ok := strings.CutPrefix(ref, "refs/heads/")
	if !ok {
		return "", "", fmt.Errorf("HEAD points to %s, which is not a branch", printable.Name(ref))
	}
	commit, err = r.Resolve(ctx, ref)
	if err != nil {
		return "", "", err
	}
	if commit == "" {
		return "", "", &fail.Error{Code: ErrEmpty.Code, Message: "branch " + printable.Name(branch) + " has no commits yet",
			Hint: "make the first one: git add -A && git commit"}
	}
	return branch, commit, nil
}

// Resolve is the commit that ref, a full ref or an object name, leads to; empty
// if it does not exist or is no commit.
func (r *Repo) Resolve(ctx context.Context, ref string) (string, error) {
	return resolve(ctx, r.git, ref)
}

func resolve(ctx context.Context, g runner, ref string) (string, error) {
	out, err := g.text(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if code := exitCode(err); code == 1 || code == 128 {
		return "", nil
	}
	return out, err
}

// ID identifies the repository by the root commits of a commit's history. It is the
// same in all clones, and for all commits of one history.
func (r *Repo) ID(ctx context.Context, commit string) (string, error) {
	roots, err := r.roots(ctx, commit)
	if err != nil {
		return "", fmt.Errorf("identify repository: %w", err)
	}
	sum := sha256.Sum256([]byte(strings.Join(roots, "\n")))
	return hex.EncodeToString(sum[:]), nil
}

// roots finds the root commits, sorted. A walk of a long history takes seconds. So roots
// notes what it found, and walks only the new commits the next time.
func (r *Repo) roots(ctx context.Context, commit string) ([]string, error) {
	dir, err := r.private()
	if err != nil {
		return nil, err
	}
	note := filepath.Join(dir, "roots")
	var known []string // a commit, and its roots
	if text, err := os.ReadFile(note); err == nil && !r.Shallow {
		known = strings.Fields(string(text))
	}
	usable := len(known) > 1 && !slices.ContainsFunc(known, func(id string) bool { return !isObjectName(id, r.format) })
	if usable {
		here, err := r.Resolve(ctx, known[0])
		if err != nil {
			return nil, err
		}
		if usable = here != ""; usable {
			if usable, err = r.ancestor(ctx, known[0], commit); err != nil {
				return nil, err
			}
		}
	}
	if !usable {
		known = nil
	}
	out, err := r.git.run(ctx, call{args: []string{"rev-list", "--max-parents=0", "--stdin"}, stdin: revisions([]string{commit}, known[:min(len(known), 1)]), timeout: patiently})
	if err != nil {
		return nil, err
	}
	roots := append(strings.Fields(string(out)), known[min(len(known), 1):]...)
	slices.Sort(roots)
	if r.Shallow {
		return roots, nil
	}
	return roots, atomicfile.Write(note, []byte(strings.Join(append([]string{commit}, roots...), "\n")+"\n"), 0o600)
}

// Author is the person's identity in git's settings. A name that is not set is "cove",
// and such an email is "cove@localhost".
func (r *Repo) Author() cove.Person {
	p := cove.Person{Name: r.config.values["user.name"], Email: r.config.values["user.email"]}
	if strings.TrimSpace(p.Name) == "" {
		p.Name = "cove"
	}
	if strings.TrimSpace(p.Email) == "" {
		p.Email = "cove@localhost"
	}
	return p
}

// JobRef is the full name of one of a job's refs: head, leftover or base.
func JobRef(job, name string) string { return "refs/cove/" + job + "/" + name }

// SetRef makes ref, or moves it if it leads to old; an empty old means that it
// must not exist. A ref that is already at commit is left so. Another value is
// ErrRefExists.
func (r *Repo) SetRef(ctx context.Context, ref, commit, old string) error {
	now, err := r.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	if now == commit {
		return nil
	}
	if now != old {
		return &fail.Error{Code: ErrRefExists.Code, Message: fmt.Sprintf("%s exists and is at %s", printable.Name(ref), now)}
	}
	if old == "" {
		old = strings.Repeat("0", len(commit))
	}
	if _, err := r.git.text(ctx, "update-ref", "-m", "cove", "--end-of-options", ref, commit, old); err != nil {
		return fmt.Errorf("set %s: %w", printable.Name(ref), err)
	}
	return nil
}

// DeleteRef removes ref if it exists.
func (r *Repo) DeleteRef(ctx context.Context, ref string) error {
	if _, err := r.git.text(ctx, "update-ref", "-d", "--end-of-options", ref); err != nil {
		return fmt.Errorf("delete %s: %w", printable.Name(ref), err)
	}
	return nil
}

// ValidBranch reports whether name can be the short name of a branch. Once ctx has ended, it
// can't tell, and reports true: the next step fails because of ctx.
func (r *Repo) ValidBranch(ctx context.Context, name string) bool {
	if name == "" || strings.HasPrefix(name, "-") || len(name) > 1000 {
		return false
	}
	_, err := r.git.text(ctx, "check-ref-format", "refs/heads/"+name)
	return err == nil || ctx.Err() != nil
}

// objects is the folder of the repository's objects.
func (r *Repo) objects() string { return filepath.Join(r.CommonDir, "objects") }

// Folder makes a folder of cove's in the repository that git takes no notice of, and that
// only its owner reads.
func (r *Repo) Folder(name string) (string, error) { return r.private(name) }

// private makes cove's folder in the repository, or one inside it.
func (r *Repo) private(names ...string) (string, error) {
	path := filepath.Join(append([]string{r.CommonDir, "cove"}, names...)...)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fmt.Errorf("make cove's folder in the repository: %w", err)
	}
	return path, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil || !isNotExist(err)
}

func isNotExist(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
