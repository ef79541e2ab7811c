// Package push is the person's half of a job: it sends a plan and the repository
// into a sprite, and brings the commits back. It works on the person's machine
// with gitwork, and speaks to the server through the client only.
package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// Jobs are the calls about jobs that this package makes; a sprites.Client has
// them.
type Jobs interface {
	CreateJob(ctx context.Context, req cove.JobRequest) (cove.Job, error)
	StartJob(ctx context.Context, id string, req cove.JobStart) (cove.Job, error)
	Job(ctx context.Context, id string) (cove.Job, error)
	WaitJob(ctx context.Context, id string) (cove.Job, error)
	MarkPulled(ctx context.Context, id, head string) (cove.Job, error)
	DeleteJob(ctx context.Context, id string, force bool) error
	AwaitInstall(ctx context.Context, id string, each func(cove.Job)) (cove.Job, error)
}

// Place is where a job's files are: a sprite, at the server or one of its backends.
type Place struct {
	Backend string // empty: at the server itself
	Sprite  string
}

func placeOf(job cove.Job) Place { return Place{job.Backend, job.Sprite} }

// Files moves files to and from sprites.
type Files interface {
	// Write makes a file of the size bytes that r gives.
	Write(ctx context.Context, at Place, path string, r io.Reader, size int64) error
	Open(ctx context.Context, at Place, path string) (io.ReadCloser, error)
	List(ctx context.Context, at Place, dir string) (names []string, err error)
}

// Courier carries work to and from a server. Jobs and Files are required.
type Courier struct {
	Jobs     Jobs
	Files    Files
	Progress func(Progress) // called now and then during a transfer; nil: not

	// Installing, if not nil, is called with the job now and then while its agent is being
	// installed. The job has its id already.
	Installing func(cove.Job)

	// Handing, if not nil, is called with the job when its repository is in its sprite, before
	// the job begins.
	Handing func(cove.Job)

	// Outlast is how long a push waits for a server that goes away once the job is made; 0:
	// not at all. Away is called then, with the first error; nil: not.
	Outlast time.Duration
	Away    func(error)
}

// New is a Courier that uses a client, and outlasts a restart of the server.
func New(client *cove.Client) *Courier {
	return &Courier{Jobs: client, Files: clientFiles{client}, Outlast: outlastLimit}
}

type clientFiles struct{ client *cove.Client }

func (c clientFiles) sprite(at Place) *sprites.Sprite {
	return c.client.At(at.Backend).Sprite(at.Sprite)
}

func (c clientFiles) Write(ctx context.Context, at Place, path string, r io.Reader, size int64) error {
	return c.sprite(at).WriteFile(ctx, path, r, sprites.WriteOptions{Size: size})
}

func (c clientFiles) Open(ctx context.Context, at Place, path string) (io.ReadCloser, error) {
	return c.sprite(at).Open(ctx, path)
}

func (c clientFiles) List(ctx context.Context, at Place, dir string) ([]string, error) {
	entries, err := c.sprite(at).ReadDir(ctx, dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Dirty says what a push does about changes that are not committed.
type Dirty string

// The policies. The zero value is DirtyRefuse.
const (
	DirtyRefuse  Dirty = "refuse"
	DirtyInclude Dirty = "include" // in a snapshot commit, which the job starts from
	DirtyIgnore  Dirty = "ignore"
)

// Options say what to push. Dir, Agent, and Plan or PlanPath are required.
type Options struct {
	Dir      string // in the repository
	PlanPath string // the plan's file, on this machine; it need not be committed
	Plan     string // the plan's text, if there is no file
	Dirty    Dirty
	Depth    int // how many commits of the history are sent; 0: all that are here

	// Remote makes the sprite clone a repository itself, in place of the one in Dir. It clones URL
	// or, if that is empty, the profile's. Branch and Depth are then as in cove.JobSource.
	Remote bool
	URL    string
	Branch string
	Issue  int // of the repository that the sprite clones; 0: none

	cove.JobSettings

	// As in cove.JobRequest.
	Config      *sprites.Config
	Include     []string
	Env         []string
	SetupScript *cove.SetupScript
	Settings    []cove.SettingsFile

	Remotes bool // NetworkPolicy gets rules for the hosts of the repository's remotes
	Policed bool // do nothing on a server that does not enforce NetworkPolicy
}

// Result is what `cove push --json` prints.
type Result struct {
	Job     string `json:"job"`
	ID      string `json:"id"`                // as Job, whose name is the documented one
	Backend string `json:"backend,omitempty"` // where the sprite is; empty: at the server
	Sprite  string `json:"sprite"`
	Branch  string `json:"branch"`
	Base    string `json:"base"`
	Sent    int64  `json:"sent"` // bytes of the repository

	Repository string `json:"repository,omitempty"` // the URL that the sprite clones; then base and sent are empty

	// Messages are what the person should know, in sentences.
	Messages []string `json:"messages,omitempty"`

	NetworkPolicy *sprites.NetworkPolicy `json:"network_policy,omitempty"` // nil: none was given, or the server enforces none
}

// MaxPlan bounds a plan's text, in bytes.
const MaxPlan = 1 << 20

// ReadPlan gives the text of a plan, from opts.PlanPath or opts.Plan, and the name that people know it by.
func ReadPlan(opts Options) (text, name string, err error) {
	text, name = opts.Plan, "prompt"
	if opts.PlanPath != "" {
		if text, err = planFile(opts.PlanPath); err != nil {
			return "", "", err
		}
		name = filepath.Base(opts.PlanPath)
	}
	shown := printable.Name(name)
	switch {
	case strings.TrimSpace(text) == "":
		return "", "", fail.New("bad_plan", "the plan "+shown+" is empty", "write into it what should be done")
	case len(text) > MaxPlan:
		return "", "", fail.New("bad_plan", fmt.Sprintf("the plan %s is larger than %d bytes", shown, MaxPlan), "put what it refers to into the repository")
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return "", "", fail.New("bad_plan", "the plan "+shown+" is not UTF-8 text", "save it as a text file")
	}
	return text, name, nil
}

// PlanHint says what to type if there is no plan file.
func PlanHint(path string) string {
	return "a plan is a text file that says what the agent should do; write " + printable.Name(path) + ", then: cove push " + printable.Word(path) +
		"\nor give the text itself: cove push -p 'TEXT'"
}

func planFile(path string) (string, error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return "", fail.New("no_plan", "no such plan: "+printable.Name(path), PlanHint(path))
	}
	if err != nil {
		return "", fmt.Errorf("read plan: %w", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return "", fail.New("no_plan", printable.Name(path)+" is a folder, not a plan", "name a file in it")
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxPlan+1))
	if err != nil {
		return "", fmt.Errorf("read plan: %w", err)
	}
	return string(data), nil
}

// Push sends the plan and the history of the checked-out branch into a sprite and
// has the job started. When it fails after the job was made, the job is deleted
// again, with the sprite that was made for it.
func (c *Courier) Push(ctx context.Context, opts Options) (Result, error) {
	if opts.Remote {
		return c.pushRemote(ctx, opts)
	}
	if opts.Issue != 0 {
		return Result{}, fail.New("bad_option", "an issue goes with a repository that the sprite clones", "name it: --repo URL")
	}
	w, err := c.wrap(ctx, opts)
	if err != nil {
		return Result{}, err
	}
	defer w.file.Remove()
	load := w.load
	prepare := c.track("prepare", 0)
	prepare.tell(false)
	job, err := c.createJob(ctx, w.req)
	prepare.done()
	if err != nil {
		return Result{}, err
	}
	if job.State == cove.JobInstalling || job.State.Terminal() { // it may have ended by the time an answer came
		if job, err = c.awaitInstall(ctx, job); err != nil {
			return Result{}, err
		}
	}
	if err := c.hand(ctx, w.repo, job, w.file, load); err != nil {
		return Result{}, err
	}
	if load.branch == "" {
		load.say("HEAD is detached: the commits will come back as the branch cove-%s", job.ID)
	}
	return Result{Job: job.ID, ID: job.ID, Backend: job.Backend, Sprite: job.Sprite, Branch: load.branch, Base: load.Base, Sent: load.bundle.Size,
		NetworkPolicy: job.NetworkPolicy, Messages: load.messages}, nil
}

// lastWord is how long createJob waits for an answer after its context has ended.
const lastWord = 2 * time.Second

// createJob makes the job. If a call is cut, the server undoes what it made. But if its
// answer is already on the way, the server does not, and nobody would know of the job. So
// createJob waits lastWord for such an answer; hand then undoes the job.
func (c *Courier) createJob(ctx context.Context, req cove.JobRequest) (cove.Job, error) {
	asked, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastWord, cut) })()
	job, err := c.Jobs.CreateJob(asked, req)
	if err != nil && asked.Err() != nil {
		err = context.Cause(ctx)
	} else if errors.Is(err, cove.ErrLost) {
		err = fail.New("lost", "create job: the server went away in the middle; the job may have been made all the same", "see: cove job list; forget one that waits for its repository: cove job rm --force JOB; and push again")
	}
	return job, err
}

// brokeOff reports whether an error is a connection that was lost in the middle of a call.
func brokeOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// awaitInstall waits until the job's agent is installed and its sprite made. If that
// fails, or is interrupted, the job is deleted; one that somebody has stopped is left.
func (c *Courier) awaitInstall(ctx context.Context, job cove.Job) (cove.Job, error) {
	if !jobID().MatchString(job.ID) {
		return job, checkAnswer(job)
	}
	now, err := c.Jobs.AwaitInstall(ctx, job.ID, c.Installing)
	switch {
	case errors.Is(err, sprites.ErrNotFound):
		return job, fail.New("bad_job", "job "+job.ID+" was deleted while its agent was being installed", "push again")
	case err == nil && now.State == cove.JobCancelled:
		return job, fail.New("job_ended", "job "+job.ID+" was stopped while its agent was being installed", "push again")
	case err == nil && now.Failure != nil:
		err = &sprites.Error{StatusCode: http.StatusConflict, ErrorBody: *now.Failure}
	case err == nil && now.State.Terminal():
		err = fail.New("job_ended", "it has ended: "+now.Error, "push again")
	case err == nil:
		return now, nil
	}
	return job, c.undo(ctx, job, fmt.Errorf("push job %s: %w", job.ID, err))
}

// undo deletes a job that can't be begun. It returns the error that says so.
func (c *Courier) undo(ctx context.Context, job cove.Job, err error) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if undoErr := c.Jobs.DeleteJob(undo, job.ID, true); undoErr != nil && !errors.Is(undoErr, sprites.ErrNotFound) {
		err = errors.Join(err, fmt.Errorf("and it is still there (cove job rm --force %s): %w", job.ID, undoErr))
		if errors.Is(err, &fail.Error{Code: "lost"}) {
			err = fail.New("lost", "push job "+job.ID+": the server went away in the middle, and the job is still there", "forget it: cove job rm --force "+job.ID+"; and push again")
		}
	}
	return err
}

// withRemotes is the policy that the job gets. The rules for the remotes open no
// protected address: they are of names.
func withRemotes(ctx context.Context, repo *gitwork.Repo, opts Options) (*sprites.NetworkPolicy, error) {
	if opts.NetworkPolicy == nil || !opts.Remotes {
		return opts.NetworkPolicy, nil
	}
	remotes, err := repo.Remotes(ctx)
	if err != nil {
		return nil, err
	}
	ports := map[string][]string{}
	var hosts []string
	for _, r := range remotes {
		if ports[r.Host] == nil {
			hosts = append(hosts, r.Host)
			ports[r.Host] = []string{"22", "80", "443"}
		}
		if port := strconv.Itoa(r.Port); !slices.Contains(ports[r.Host], port) {
			ports[r.Host] = append(ports[r.Host], port)
		}
	}
	p := &sprites.NetworkPolicy{Rules: slices.Clone(opts.NetworkPolicy.Rules)}
	for _, host := range hosts {
		p.Rules = append(p.Rules, sprites.NetworkRule{Domain: host, Action: "allow", Ports: ports[host]})
	}
	return p, nil
}

// hand uploads the bundle and starts the job, or undoes what was made.
func (c *Courier) hand(ctx context.Context, repo *gitwork.Repo, job cove.Job, file io.ReadSeeker, load *load) error {
	err := checkAnswer(job)
	if err == nil && load.policed && job.NetworkPolicy == nil {
		err = fail.New("no_policy", "this server enforces no network policy", "push without --network")
	}
	ref := gitwork.JobRef(job.ID, "base")
	if err == nil {
		// The base stays reachable here until it is pulled, also a snapshot.
		err = repo.SetRef(ctx, ref, load.Base, "")
	}
	if err == nil {
		err = c.outlast(ctx, func() error {
			if _, err := file.Seek(0, io.SeekStart); err != nil {
				return err
			}
			track := c.track("upload", load.bundle.Size)
			err := c.Files.Write(ctx, placeOf(job), job.Upload, track.reader(file), load.bundle.Size)
			if err == nil {
				track.done()
			}
			return err
		})
	}
	if err == nil {
		err = c.sendLarge(ctx, job, load)
	}
	if err == nil && c.Handing != nil {
		c.Handing(job)
	}
	if err == nil {
		var known bool
		known, err = c.start(ctx, job.ID, cove.JobStart{BundleSHA256: load.bundle.SHA256, BundleSize: load.bundle.Size, LargeBytes: load.largeBytes(), Shallow: load.Shallow})
		switch {
		case err == nil:
			return nil
		case !known:
			return fail.New("lost", "push job "+job.ID+": the server went away in the middle; the job may have begun all the same", "see: cove job show "+job.ID)
		}
	}
	if brokeOff(err) {
		err = fail.New("lost", "the server went away in the middle", "push again")
	}
	err = fmt.Errorf("push job %s: %w", printable.Name(job.ID), err)
	if !jobID().MatchString(job.ID) {
		return err // there is nothing that could be named
	}
	return errors.Join(c.undo(ctx, job, err), repo.DeleteRef(context.WithoutCancel(ctx), ref))
}

// checkAnswer refuses a job that could not be named or filled.
func checkAnswer(job cove.Job) error {
	if !jobID().MatchString(job.ID) {
		return &fail.Error{Code: "bad_answer", Message: "the server named the job " + printable.Name(job.ID) + ", which is not a job id"}
	}
	if job.Sprite == "" || job.Upload == "" {
		return &fail.Error{Code: "bad_answer", Message: "the server did not say where the repository should go"}
	}
	return nil
}

// jobID is what a job is called. Nothing else gets into a path or a ref.
var jobID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{6}$`) })
