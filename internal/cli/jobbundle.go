package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/sprites"
)

func newJobBundleCommand(inv *invocation) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "bundle JOB",
		Short: "Write all that is known of a job into an archive, to find out what went wrong",
		Long: `Writes all that is known of a job into one archive:

  - its description, its events, and its log as people read it
  - what the agent printed, and the agent's own record of the conversation
  - the logs of the supervisor and of the sandbox, and what the network policy refused
  - the versions of everything, and the names of the environment's variables, without values

manifest.json lists what can't be had any more, with the reason.

Only you can read the archive. It has the agent's output unchanged: look through it before you
give it to somebody. It is written to the current folder; in a git repository, to
.git/cove/bundles, where git does not see it. If --output ends with /, it is a folder.`,
		Example: `  cove job bundle a3f7b2
  cove job bundle a3f7b2 --output forensics/`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
		RunE: jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
			job, err := c.Job(ctx, id)
			if err != nil {
				return err
			}
			name := output
			if name == "" {
				if name, err = bundleName(ctx, "cove-job-"+id+".tar.gz"); err != nil {
					return err
				}
			}
			return bundleJob(ctx, inv, c, job, name)
		}),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the archive to write, or with a / at its end the folder (default: cove-job-JOB.tar.gz, in .git/cove/bundles or the current folder)")
	return cmd
}

// bundleName is where a bundle goes if no place is given. That is never among the files of
// a repository: it would make the repository dirty, or could be committed.
func bundleName(ctx context.Context, name string) (string, error) {
	repo, err := gitwork.Open(ctx, ".")
	switch {
	case errors.Is(err, gitwork.ErrNotRepository), errors.Is(err, gitwork.ErrNoGit), err == nil && repo.Bare:
		return name, nil
	case err != nil:
		return "", err
	}
	dir, err := repo.Folder("bundles")
	return filepath.Join(dir, name), err
}

// bundled is what a bundle's manifest says, and --json prints.
type bundled struct {
	Job     string           `json:"job"`
	Output  string           `json:"output"`
	At      time.Time        `json:"at"`
	Files   map[string]int64 `json:"files"`   // sizes, by name
	Missing []missingFile    `json:"missing"` // what could not be had
}

type missingFile struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

func bundleJob(ctx context.Context, inv *invocation, c *cove.Client, job cove.Job, output string) error {
	dst, err := newBundleFile(output)
	if err != nil {
		return err
	}
	b := &jobBundle{
		client: c, job: job, sprite: c.At(job.Backend).Sprite(job.Sprite), dst: dst, left: maxCopied,
		manifest: bundled{Job: job.ID, Output: output, At: time.Now().UTC(), Files: map[string]int64{}, Missing: []missingFile{}},
	}
	shown := inv.newProgress("collecting", 0)
	err = b.collect(ctx, shown.Add)
	shown.Close()
	if err = errors.Join(err, dst.close(err == nil)); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return inv.show(b.manifest, func(w io.Writer) {
		fmt.Fprintf(w, "Wrote %s: %s.\n", printable.Line(output), printable.Count(len(b.manifest.Files), "file"))
		for _, m := range b.manifest.Missing {
			fmt.Fprintf(w, "  without %s: %s\n", printable.Line(m.Name), printable.Line(m.Why))
		}
	})
}

// jobBundle collects all that is known about a job.
type jobBundle struct {
	client   *cove.Client
	sprite   *sprites.Sprite
	job      cove.Job
	dst      bundleFile
	manifest bundled
	add      func(int)
	left     int64 // bytes that may still come out of the sprite
}

// Bounds on what a sprite puts into a bundle.
const (
	maxBundled     = 256 << 20 // bytes of one file
	maxCopied      = 1 << 30   // bytes of all
	maxTranscripts = 1000
)

func (b *jobBundle) collect(ctx context.Context, add func(int)) error {
	b.add = add
	steps := []func(context.Context) error{b.fromServer, b.events, b.fromSandbox, b.fromSprite}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return b.json("manifest.json", b.manifest)
}

// fromServer adds what the server and this program know without the sprite's help.
func (b *jobBundle) fromServer(ctx context.Context) error {
	names := b.job.EnvNames
	info, err := b.client.At(b.job.Backend).Get(ctx, b.job.Sprite)
	if err == nil {
		names = slices.Concat(names, slices.Collect(maps.Keys(info.Environment)))
		info.Environment = nil // its values are nobody's business
		err = b.json("sprite.json", info)
	} else {
		err = b.missing("sprite.json", err)
	}
	slices.Sort(names)
	err = errors.Join(err, b.json("job.json", b.job), b.json("environment.json", map[string][]string{"names": slices.Compact(names)}))
	server, versionErr := b.client.Version(ctx)
	if versionErr != nil {
		err = errors.Join(err, b.missing("the server's version", versionErr))
	}
	return errors.Join(err, b.json("versions.json", struct {
		Client   versions `json:"client"`
		Server   string   `json:"server"`
		Protocol string   `json:"protocol"`
	}{readVersions(), server.Version, sprites.Version}))
}

// events adds the job's log, for programs and for people.
func (b *jobBundle) events(ctx context.Context) error {
	var lines, text bytes.Buffer
	enc := json.NewEncoder(&lines)
	log := newLogPrinter(&text, b.job)
	for event, err := range b.client.JobEvents(ctx, b.job.ID, 1, false) {
		if err != nil {
			if err := b.missing("the rest of events.jsonl", err); err != nil {
				return err
			}
			break
		}
		if err := enc.Encode(event); err != nil {
			return err
		}
		log.print(event)
	}
	return errors.Join(b.file("events.jsonl", lines.Bytes()), b.file("log.txt", text.Bytes()))
}

// fromSandbox adds the notes that the server's side of the sandbox has made.
func (b *jobBundle) fromSandbox(ctx context.Context) error {
	var refused bytes.Buffer
	enc := json.NewEncoder(&refused)
	err := b.sprite.NetworkLog(ctx, sprites.NetworkLogOptions{Since: b.job.CreatedAt}, func(e sprites.NetworkEvent) error { return enc.Encode(e) })
	if err == nil {
		err = b.file("sandbox/refused.jsonl", refused.Bytes())
	} else {
		err = b.missing("sandbox/refused.jsonl", err)
	}
	logs, logsErr := b.sprite.SandboxLogs(ctx)
	if logsErr != nil {
		return errors.Join(err, b.missing("sandbox/*.log", logsErr))
	}
	for _, log := range logs {
		if name := path.Base(path.Clean(log.Name)); err == nil && name != "." && name != "/" {
			err = b.file("sandbox/"+name, []byte(log.Text))
		}
	}
	return err
}

// fromSprite adds the job's files in the sprite, but not job.json, which has the environment.
func (b *jobBundle) fromSprite(ctx context.Context) error {
	dir := path.Dir(b.job.Input.Path)
	if b.job.Input.Path == "" {
		return b.missing("agent/*", errors.New("the job never began"))
	}
	for _, name := range []string{"output.log", "supervisor.log", "end.json"} {
		if err := b.copy(ctx, path.Join(dir, name), "agent/"+name); err != nil {
			return err
		}
	}
	agent, err := agents.Of(b.job.Agent, b.job.Definition)
	transcriber, ok := agent.(agents.Transcriber)
	if err != nil || !ok || b.job.Workdir == "" {
		return b.missing("transcript/*", fmt.Errorf("the agent %s keeps none", b.job.Agent))
	}
	from := transcriber.Transcripts(b.job.Workdir)
	entries, err := b.sprite.ReadDir(ctx, from)
	if err != nil {
		return b.missing("transcript/*", err)
	}
	for i, e := range entries {
		if i == maxTranscripts || b.left == 0 {
			return b.missing("the rest of transcript/*", fmt.Errorf("the sprite has %d, or more of them than fits", len(entries)))
		}
		if !e.Type().IsRegular() || strings.ContainsAny(e.Name(), "/\\\x00") {
			continue
		}
		name := fmt.Sprintf("transcript/%d%s", i+1, plainExt().FindString(e.Name()))
		if err := b.copy(ctx, path.Join(from, e.Name()), name); err != nil {
			return err
		}
	}
	return nil
}

// copy adds a file of the sprite's, if it can be had.
func (b *jobBundle) copy(ctx context.Context, from, name string) error {
	f, err := b.sprite.Open(ctx, from)
	if err != nil {
		return b.missing(name, err)
	}
	defer func() { _ = f.Close() }()
	limit := min(b.left, maxBundled)
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if int64(len(data)) > limit {
		data, err = data[:limit], fmt.Errorf("of one file %s are taken, of all %s", printable.Bytes(maxBundled), printable.Bytes(maxCopied))
	}
	if err != nil {
		if err := b.missing("the rest of "+name, err); err != nil {
			return err
		}
	}
	b.left -= int64(len(data))
	return b.file(name, data)
}

// plainExt matches an extension that cove takes over from a file name chosen by a sprite.
var plainExt = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\.[0-9A-Za-z]{1,10}$`) })

// missing notes a file that can't be had, and why. If the person has canceled, it returns that
// error instead.
func (b *jobBundle) missing(name string, why error) error {
	if errors.Is(why, context.Canceled) {
		return why
	}
	b.manifest.Missing = append(b.manifest.Missing, missingFile{name, why.Error()})
	return nil
}

func (b *jobBundle) json(name string, doc any) error {
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return b.file(name, append(text, '\n'))
}

func (b *jobBundle) file(name string, data []byte) error {
	b.add(len(data))
	b.manifest.Files[name] = int64(len(data))
	return b.dst.write("cove-job-"+b.job.ID, name, data)
}

// A bundleFile is the place that a bundle is written to.
type bundleFile interface {
	write(top, name string, data []byte) error
	close(whole bool) error
}

func newBundleFile(output string) (bundleFile, error) {
	if strings.HasSuffix(output, string(filepath.Separator)) {
		return bundleFolder{output}, nil
	}
	f, err := os.OpenFile(output, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fail.Newf("exists", "name another with --output, or remove it", "%s is there already", output)
	}
	if err != nil {
		return nil, err
	}
	z := gzip.NewWriter(f)
	return &bundleArchive{f, z, tar.NewWriter(z)}, nil
}

// bundleArchive is a compressed tar file.
type bundleArchive struct {
	file *os.File
	gzip *gzip.Writer
	tar  *tar.Writer
}

func (b *bundleArchive) write(top, name string, data []byte) error {
	header := tar.Header{Name: top + "/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()}
	if err := b.tar.WriteHeader(&header); err != nil {
		return err
	}
	_, err := b.tar.Write(data)
	return err
}

func (b *bundleArchive) close(whole bool) error {
	err := errors.Join(b.tar.Close(), b.gzip.Close(), b.file.Close())
	if !whole || err != nil {
		_ = os.Remove(b.file.Name()) // half an archive is none
	}
	return err
}

// bundleFolder is a folder, which may be there.
type bundleFolder struct{ dir string }

func (b bundleFolder) write(_, name string, data []byte) error {
	file := filepath.Join(b.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func (b bundleFolder) close(bool) error { return nil }
