// Package build makes images from Dockerfiles. Each RUN runs in a sprite of its own, over the image
// of the step before. The changes of the sprite's disk are the step's layer. All other steps are
// done here, without a sandbox. Each step is an image; the next build finds it by a key of all that
// it depends on.
//
// The builder's folder:
//
//	runs/    of builds under way; the next start removes it
//	caches/  of RUN --mount=type=cache, each by a digest of its id
package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/dockerfile"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// Builder builds images. Set the fields before use. Its methods may be called from any goroutine,
// and builds at once share nothing but the steps and caches of earlier ones.
type Builder struct {
	Dir    string // its folder; it is made
	Images *image.Store
	Steps  *store.Builds
	Host   *sprite.Host
	Client *cove.Client // of this server, with all rights
	UserNS bool         // as in image.Options
	Logger *slog.Logger // nil: discard

	once   sync.Once
	failed error // of the start
	caches caches
	active atomic.Int64

	ending sync.Mutex
	ended  bool // no sandbox of an earlier server's builds runs; guarded by ending
}

const (
	runsFolder   = "runs"
	cachesFolder = "caches"
)

// Start makes the folder, and removes what an earlier server has left half done. The other methods
// call it if nobody has.
func (b *Builder) Start() error {
	b.once.Do(func() {
		if b.Logger == nil {
			b.Logger = slog.New(slog.DiscardHandler)
		}
		b.caches.dir = filepath.Join(b.Dir, cachesFolder)
		b.failed = layers.Remove(filepath.Join(b.Dir, runsFolder))
		for _, dir := range []string{runsFolder, cachesFolder} {
			if b.failed == nil {
				b.failed = os.MkdirAll(filepath.Join(b.Dir, dir), 0o700)
			}
		}
	})
	return b.failed
}

// endEarlier waits until no sandbox of an earlier server's build runs: it would use a cache.
func (b *Builder) endEarlier(ctx context.Context) error {
	b.ending.Lock()
	defer b.ending.Unlock()
	if b.ended {
		return nil
	}
	err := sprite.EndBuilds(ctx, b.Host)
	b.ended = err == nil
	return err
}

// Busy reports whether anything is being built: then images without a name are in use.
func (b *Builder) Busy() bool { return b.active.Load() > 0 }

// Prune removes the caches that no build uses, and says how many bytes that was.
func (b *Builder) Prune(ctx context.Context) (int64, error) {
	if err := b.Start(); err != nil {
		return 0, err
	}
	if err := b.endEarlier(ctx); err != nil {
		return 0, err
	}
	return b.caches.prune(ctx, 0)
}

// CacheBytes is what the caches take on the disk.
func (b *Builder) CacheBytes(ctx context.Context) (bytes int64, err error) {
	if err := b.Start(); err != nil {
		return 0, err
	}
	all, err := b.caches.list(ctx)
	for _, one := range all {
		bytes += one.bytes
	}
	return bytes, err
}

// Build makes the image that a request asks for. tar is the context. tell gets each event but the
// last. Only one goroutine at a time calls it.
func (b *Builder) Build(ctx context.Context, req cove.ImageBuild, tar io.Reader, tell func(cove.ImageBuildEvent)) (_ image.Image, err error) {
	if err := b.Start(); err != nil {
		return image.Image{}, err
	}
	if err := b.endEarlier(ctx); err != nil {
		return image.Image{}, err
	}
	b.active.Add(1)
	defer b.active.Add(-1)
	dir, err := os.MkdirTemp(filepath.Join(b.Dir, runsFolder), "build-")
	if err != nil {
		return image.Image{}, err
	}
	r := &run{Builder: b, req: req, dir: dir, tell: tell, made: map[int]string{}, images: map[string]string{}}
	defer func() {
		r.removing.Wait()
		for _, release := range r.held {
			release()
		}
		if r.grown {
			if _, err := b.caches.prune(context.WithoutCancel(ctx), maxCaches); err != nil {
				b.Logger.Error("removing the oldest caches of builds", "err", err)
			}
		}
		if err := layers.Remove(dir); err != nil {
			b.Logger.Error("removing what a build has left; the next start retries", "err", err)
		}
	}()
	return r.build(ctx, tar)
}

// run is a build.
type run struct {
	*Builder
	req  cove.ImageBuild
	dir  string
	tell func(cove.ImageBuildEvent)

	made   map[int]string    // the image of each stage that is through, by Index
	images map[string]string // the digests of references
	held   []func()

	grown        bool // caches were written
	count, steps int
	removing     sync.WaitGroup // of sprites
}

// planned is a stage with its steps.
type planned struct {
	dockerfile.Stage
	base  string // digest; empty: it is nothing, or another stage
	steps []dockerfile.Step
	was   v1.Config // before the first
}

func (r *run) build(ctx context.Context, tar io.Reader) (one image.Image, err error) {
	file := cmp.Or(r.req.File, "Dockerfile")
	doc, err := dockerfile.Parse([]byte(r.req.Dockerfile), file)
	if err != nil {
		return one, err
	}
	stages, err := doc.Stages(r.req.Target, r.req.Args, v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	if err != nil {
		return one, err
	}
	if err := r.check(ctx); err != nil {
		return one, err
	}
	r.warn(doc)
	if err := r.receive(ctx, tar); err != nil {
		return one, err
	}
	plan, err := r.plan(ctx, file, stages)
	if err != nil {
		return one, err
	}
	digest := ""
	for _, p := range plan {
		if digest, err = r.stage(ctx, p); err != nil {
			return one, err
		}
		r.made[p.Index] = digest
	}
	if digest == "" { // FROM scratch, and nothing else
		if one, err = r.Images.Compose(ctx, image.Draft{Held: r.hold}); err != nil {
			return one, err
		}
		digest = one.Digest
	}
	for _, name := range r.req.Names {
		if _, err := r.Images.Tag(ctx, digest, name); err != nil {
			return one, err
		}
		fault.Reach(fault.BuildNamed)
	}
	return r.Images.Get(ctx, digest)
}

// warn tells of arguments that no ARG declares: they are no error.
func (r *run) warn(doc *dockerfile.Document) {
	names, declared := doc.Undeclared(r.req.Args)
	for _, name := range names {
		says := fmt.Sprintf("the Dockerfile has no ARG %.100q, which --build-arg sets", name)
		if declared != "" {
			says += "; there are: " + declared
		}
		r.tell(cove.ImageBuildEvent{Type: cove.BuildWarning, Text: says})
	}
}

// check refuses bad names and limits in the build's request, before anything is done.
func (r *run) check(ctx context.Context) error {
	for _, name := range r.req.Names {
		if err := image.CheckName(name); err != nil {
			return err
		}
	}
	return sprite.CheckBuild(ctx, r.Host, sprite.BuildRequest{NetworkPolicy: r.policy(""), CPUs: r.req.CPUs, RAMMB: r.req.RAMMB})
}

func (r *run) policy(network string) sprites.NetworkPolicy {
	switch {
	case network == dockerfile.NetworkNone:
		return sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}
	case r.req.NetworkPolicy != nil:
		return *r.req.NetworkPolicy
	}
	return sprites.NetworkPolicy{}
}

// plan gets the images that the stages begin with or copy from, and works out all steps. So a step
// that is refused is refused before the first one is done.
func (r *run) plan(ctx context.Context, file string, stages []dockerfile.Stage) (plan []planned, err error) {
	layers := map[int]int{} // of each stage, by Index, at most
	for _, st := range stages {
		p := planned{Stage: st}
		var base *v1.ConfigFile
		if st.From != "" && st.From != dockerfile.Scratch {
			if p.base, err = r.image(ctx, st.From); err == nil {
				base, err = r.Images.ConfigFile(ctx, p.base)
			}
			if err != nil {
				return nil, atLine(err, file, st.Line)
			}
			p.was = base.Config
		}
		if p.steps, err = st.Steps(base); err != nil {
			return nil, err
		}
		for _, s := range p.steps {
			if err := r.checkStep(ctx, s); err != nil {
				return nil, atLine(err, file, s.Line)
			}
		}
		if layers[st.Index], err = r.countLayers(ctx, p, layers[st.FromStage], file); err != nil {
			return nil, err
		}
		r.steps += len(p.steps)
		plan = append(plan, p)
	}
	return plan, nil
}

// countLayers is the most layers that a stage can have in the end. If an image can't have as many,
// the error names the first step that is one too many. below is the number of layers of the stage
// that it starts from.
func (r *run) countLayers(ctx context.Context, p planned, below int, file string) (int, error) {
	n := 0
	if p.base != "" {
		one, err := r.Images.Get(ctx, p.base)
		if err != nil {
			return 0, err
		}
		n = len(one.Layers)
	} else if p.FromStage >= 0 {
		n = below
	}
	for _, s := range p.steps {
		if s.Run == nil && s.Copy == nil {
			continue
		}
		if n++; n > image.MaxLayers {
			return 0, atLine(fail.Newf("dockerfile_unsupported", "join commands: RUN one && two", "the image would have more than %d layers: each RUN, COPY and ADD is one", image.MaxLayers), file, s.Line)
		}
	}
	return n, nil
}

// checkStep refuses a step that can't be done, and gets the images that it needs.
func (r *run) checkStep(ctx context.Context, s dockerfile.Step) (err error) {
	if s.Copy != nil && s.Copy.FromImage != "" {
		if _, err = r.image(ctx, s.Copy.FromImage); err != nil {
			err = noStage(err, s.Copy.FromImage)
		}
	}
	if s.Run == nil || err != nil {
		return err
	}
	for _, m := range s.Run.Mounts {
		switch {
		case m.Type == dockerfile.MountBind && strings.ContainsAny(m.Source, `*?[\`):
			return fail.Newf("dockerfile_unsupported", "mount the folder above it", "RUN --mount=type=bind of a name with one of * ? [ \\ is not supported")
		case m.Type == dockerfile.MountBind && !m.Context:
			return fail.Newf("dockerfile_unsupported", "copy what it needs: COPY --from", "RUN --mount=type=bind,from=… is not supported")
		case m.Type == dockerfile.MountBind && !m.ReadOnly:
			return fail.Newf("dockerfile_unsupported", "copy what it changes: COPY", "RUN --mount=type=bind,rw is not supported")
		case m.Type == dockerfile.MountCache && (m.Context || m.FromImage != "" || m.FromStage >= 0):
			return fail.Newf("dockerfile_unsupported", "leave from and source out: the cache begins empty", "RUN --mount=type=cache,from=… is not supported")
		case m.Type == dockerfile.MountSecret && m.Required:
			if _, ok := r.req.Secrets[m.ID]; !ok {
				return fail.Newf("bad_request", fmt.Sprintf("give it: --secret id=%s,src=FILE", m.ID), "the secret %.100q is required, and was not given", m.ID)
			}
		}
	}
	return nil
}

// noStage says of an image that can't be had that no stage has its name either.
func noStage(err error, name string) error {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		with := *e
		with.Message = fmt.Sprintf("no stage before this one is named %.100q; taken as an image: %s", name, e.Message)
		return &with
	}
	return err
}

// image returns the digest of an image, which it pulls if it is not here. It stays until the
// build ends.
func (r *run) image(ctx context.Context, reference string) (string, error) {
	if digest, ok := r.images[reference]; ok {
		return digest, nil
	}
	one, err := r.Images.Get(ctx, reference)
	if err == nil {
		r.hold(r.Images.Hold(one.Digest))
		_, err = r.Images.Get(ctx, one.Digest) // it may have been removed before it was held
	}
	if e, ok := errors.AsType[*fail.Error](err); r.req.Pull || ok && e.Code == sprite.CodeImageNotFound {
		one, err = r.Images.Pull(ctx, reference, image.PullOptions{Held: r.hold, Progress: func(p image.Progress) {
			r.tell(cove.ImageBuildEvent{Type: cove.BuildPulling, Text: reference, Pull: &cove.ImageEvent{
				Type: "progress", Phase: p.Phase, Layer: p.Layer, Bytes: p.Bytes, Total: p.Total, LayersDone: p.LayersDone, Layers: p.Layers,
			}})
		}})
	}
	if err != nil {
		return "", err
	}
	r.images[reference] = one.Digest
	return one.Digest, nil
}

// hold notes a hold on an image, until the build ends.
func (r *run) hold(release func()) { r.held = append(r.held, release) }

// atLine adds the file and the line of a Dockerfile to an error.
func atLine(err error, file string, line int) error {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		at := *e
		at.Message = fmt.Sprintf("%s:%d: %s", file, line, e.Message)
		return &at
	}
	return fmt.Errorf("%s:%d: %w", file, line, err)
}

// stage does the steps of a stage, and returns the digest of its image; empty: it has none.
func (r *run) stage(ctx context.Context, p planned) (digest string, err error) {
	digest = p.base
	was, author := p.was, ""
	if p.FromStage >= 0 {
		digest = r.made[p.FromStage]
		if digest != "" {
			base, err := r.Images.ConfigFile(ctx, digest)
			if err != nil {
				return "", err
			}
			was, author = base.Config, base.Author
		}
	}
	for _, s := range p.steps {
		r.count++
		e := cove.ImageBuildEvent{Type: cove.BuildStep, Step: r.count, Steps: r.steps, Stage: cmp.Or(p.Name, strconv.Itoa(p.Index)), Line: s.Line, Text: s.Text}
		same := s.Run == nil && s.Copy == nil && s.Folder == "" && s.Author == author && reflect.DeepEqual(s.Config, was)
		if was, author = s.Config, s.Author; same {
			r.tell(e)
			continue
		}
		if digest, err = r.step(ctx, s, digest, e); err != nil {
			return "", atLine(err, cmp.Or(r.req.File, "Dockerfile"), s.Line)
		}
	}
	return digest, nil
}

// step does a step over a parent, unless that was done before, and returns the image.
func (r *run) step(ctx context.Context, s dockerfile.Step, parent string, e cove.ImageBuildEvent) (digest string, err error) {
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	keys, digest, err := r.known(ctx, s, parent)
	if err != nil {
		return "", err
	}
	if e.Cached = digest != ""; e.Cached {
		r.tell(e)
		return digest, nil
	}
	r.tell(e)
	draft := image.Draft{Parent: parent, History: s.History, Held: r.hold, Edit: func(c *v1.ConfigFile) error {
		c.Config = s.Config
		c.Author = cmp.Or(s.Author, c.Author)
		return nil
	}}
	switch {
	case s.Run != nil:
		done, release, err := r.command(ctx, s.Run, parent)
		remove := func() error { return nil }
		if done != nil {
			remove = done.Remove
		}
		defer r.clear(remove, release)
		if err != nil {
			return "", err
		}
		fault.Reach(fault.BuildRan)
		draft.Layer = func(w io.Writer) error { return done.Layer(ctx, w) }
	case s.Copy != nil:
		draft.Layer = func(w io.Writer) error { return r.copyFiles(ctx, s.Copy, parent, w) }
	case s.Folder != "":
		draft.Layer = func(w io.Writer) error { return r.makeFolder(ctx, s, parent, w) }
	}
	one, err := r.Images.Compose(ctx, draft)
	if err != nil {
		return "", err
	}
	fault.Reach(fault.BuildComposed)
	for _, key := range keys {
		if err := r.Steps.Put(ctx, key, one.Digest); err != nil {
			return "", err
		}
	}
	fault.Reach(fault.BuildCached)
	return one.Digest, nil
}

// clear removes the sprite of a command while the next steps run. Then it releases the caches: the
// sandbox may write to them until it has ended.
func (r *run) clear(remove func() error, release func()) {
	r.removing.Go(func() {
		if err := remove(); err != nil {
			r.Logger.Error("removing the sprite of a build; the next start retries", "err", err)
		}
		release()
	})
}

// known are the keys of a step, and the image that it has made before; empty: none that is here. A
// copy from a stage or an image has a key of that one's digest, too: then its files need no look.
func (r *run) known(ctx context.Context, s dockerfile.Step, parent string) (keys []string, digest string, err error) {
	content := ""
	switch {
	case s.Copy != nil:
		if of := r.imageOf(s.Copy); of != "" {
			keys = append(keys, dockerfile.Key(parent, s, "of "+of))
			if !r.req.NoCache {
				if digest, err = r.cached(ctx, keys[0]); err != nil || digest != "" {
					return keys, digest, err
				}
			}
		}
		content, err = r.filesDigest(ctx, s.Copy)
	case s.Run != nil:
		content, err = r.mounted(ctx, s.Run)
	}
	if err != nil {
		return nil, "", err
	}
	keys = append(keys, dockerfile.Key(parent, s, content))
	if r.req.NoCache {
		return keys, "", nil
	}
	if digest, err = r.cached(ctx, keys[len(keys)-1]); err == nil && digest != "" && len(keys) > 1 {
		err = r.Steps.Put(ctx, keys[0], digest)
	}
	return keys, digest, err
}

// cached is the image that a step has made before; empty: none that is here.
func (r *run) cached(ctx context.Context, key string) (string, error) {
	s, err := r.Steps.Use(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	r.hold(r.Images.Hold(s.Image))
	if _, err := r.Images.Trees(ctx, s.Image); err != nil { // it was removed, or is damaged
		return "", nil //nolint:nilerr // then the step is done again
	}
	return s.Image, nil
}
