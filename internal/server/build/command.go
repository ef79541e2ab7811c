package build

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/buildstep"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/dockerfile"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// command runs a RUN in a sprite over the parent. The caller removes the sprite, if there is one,
// also after an error, and then releases the caches that the command has used.
func (r *run) command(ctx context.Context, c *dockerfile.Run, parent string) (b *sprite.Building, release func(), err error) {
	if parent == "" {
		return nil, func() {}, fail.New("dockerfile_bad", "first COPY something that can run, or begin FROM another image", "RUN in an empty image: nothing could run there")
	}
	step, binds, release, err := r.describe(ctx, c)
	if err != nil {
		return nil, func() {}, err
	}
	text, err := json.Marshal(step)
	if err != nil {
		return nil, release, err
	}
	if len(text) > buildstep.Max {
		return nil, release, fail.Newf("dockerfile_bad", "", "the command and its settings have more than %d bytes", buildstep.Max)
	}
	b, err = sprite.StartBuild(ctx, r.Host, sprite.BuildRequest{Image: parent, NetworkPolicy: r.policy(c.Network), CPUs: r.req.CPUs, RAMMB: r.req.RAMMB, Binds: binds})
	if err != nil {
		return nil, release, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.endIfHeld(ctx, b.Lease(), cancel)()
	cmd := r.Client.Sprite(b.Name()).CommandContext(ctx, boot.BinDir+"/cove-guest", "step")
	out := &outputs{tell: r.tell}
	cmd.User, cmd.Dir, cmd.Stdin = "root", "/", bytes.NewReader(text)
	cmd.Stdout, cmd.Stderr = &output{of: out}, &output{of: out, stderr: true}
	err = cmd.Run()
	cmd.Stdout.(*output).end()
	cmd.Stderr.(*output).end()
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok {
		if full, ok := errors.AsType[*fail.Error](r.Images.Claim(1)); ok { // most likely, the command has filled it
			return b, release, fail.Newf(full.Code, full.Hint, "the command ended with exit code %d, and the disk of the server is full", exit.Code)
		}
		hint := ""
		if flags := r.refusals(ctx, b.Name()); flags != "" {
			hint = "the network rules refused something that the command asked for; if it needs that, build with: " + flags
		}
		return b, release, fail.Newf("build_failed", hint, "the command ended with exit code %d", exit.Code)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return b, release, err
}

// endIfHeld ends a command whose sprite is paused because the disk is full.
func (r *run) endIfHeld(ctx context.Context, lease *sprite.Lease, end func(error)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			held, changed := lease.Held()
			if held != nil {
				end(fail.Newf("no_space", cmp.Or(held.Hint, "free some space"), "the disk of the server is full: %s", held.Message))
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// describe returns the command as the guest is told it, and the folders that its sandbox is
// shown. release releases the caches.
func (r *run) describe(ctx context.Context, c *dockerfile.Run) (s buildstep.Step, binds []sprite.Bind, release func(), err error) {
	s = buildstep.Step{Argv: c.Argv, Env: slices.Concat(c.Env, c.Proxy), Dir: c.Dir, User: c.User}
	for _, f := range c.Files {
		s.Mounts = append(s.Mounts, buildstep.Mount{Kind: buildstep.File, Target: f.Name, Data: []byte(f.Data), Mode: f.Mode})
	}
	var ids []string
	for _, m := range c.Mounts {
		if m.Type == dockerfile.MountCache {
			ids = append(ids, m.ID)
		}
	}
	folders, release, err := r.caches.take(ctx, ids)
	if err != nil {
		return s, nil, nil, err
	}
	r.grown = r.grown || len(ids) > 0
	context := false
	for i, m := range c.Mounts {
		to := buildstep.Mount{Kind: buildstep.Bind, Target: m.Target, ReadOnly: m.ReadOnly, UID: int(m.UID), GID: int(m.GID), Size: m.Size}
		switch m.Type {
		case dockerfile.MountTmpfs:
			to.Kind = buildstep.Tmpfs
		case dockerfile.MountCache:
			to.Source, to.Own, to.Mode = path.Join(buildstep.Dir, "cache"+strconv.Itoa(i)), true, 0o755
			binds = append(binds, sprite.Bind{Source: folders[m.ID], Target: to.Source})
		case dockerfile.MountBind:
			const shown = buildstep.Dir + "/context"
			if !context {
				binds = append(binds, sprite.Bind{Source: filepath.Join(r.dir, contextFolder), Target: shown, ReadOnly: true})
			}
			context, to.Source = true, path.Join(shown, path.Join("/", m.Source))
		case dockerfile.MountSecret:
			data, ok := r.req.Secrets[m.ID]
			if !ok {
				continue
			}
			if m.Env != "" {
				s.Env = slices.DeleteFunc(slices.Clone(s.Env), func(pair string) bool { return strings.HasPrefix(pair, m.Env+"=") })
				s.Env = append(s.Env, m.Env+"="+string(data))
			}
			if m.Target == "" {
				continue
			}
			to.Kind, to.Data, to.Mode, to.ReadOnly = buildstep.File, data, 0o400, true
		}
		if m.Mode != nil {
			to.Mode = *m.Mode
		}
		s.Mounts = append(s.Mounts, to)
	}
	return s, binds, release, nil
}

// outputs tells of the output of a command.
type outputs struct {
	mu   sync.Mutex
	tell func(cove.ImageBuildEvent)
}

// maxLine is how many bytes of a line without an end are told at once.
const maxLine = 16 << 10

// output is one of a command's two outputs. It is told in whole lines.
type output struct {
	of     *outputs
	stderr bool
	rest   []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.rest = append(o.rest, p...)
	if end := bytes.LastIndexByte(o.rest, '\n'); end >= 0 {
		o.say(o.rest[:end+1])
		o.rest = append(o.rest[:0], o.rest[end+1:]...)
	}
	if len(o.rest) > maxLine {
		o.end()
	}
	return len(p), nil
}

// end tells the rest, which has no line end.
func (o *output) end() {
	if len(o.rest) > 0 {
		o.say(o.rest)
	}
	o.rest = o.rest[:0]
}

func (o *output) say(text []byte) {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	o.of.tell(cove.ImageBuildEvent{Type: cove.BuildOutput, Output: strings.ToValidUTF8(string(text), "\ufffd"), Stderr: o.stderr})
}
