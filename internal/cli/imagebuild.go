package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/buildcontext"
	"github.com/cove-dev/cove/internal/lib/dockerignore"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

type imageBuildOptions struct {
	file    string
	names   []string
	target  string
	args    []string
	secrets []string
	network string
	allow   []string
	cpus    int
	memory  string
	noCache bool
	pull    bool
}

func newImageBuildCommand(inv *invocation) *cobra.Command {
	var o imageBuildOptions
	cmd := &cobra.Command{
		Use:   "build FOLDER",
		Short: "Make an image from a Dockerfile",
		Long: `Makes an image from a Dockerfile, without Docker and without root. Each RUN runs in a sprite of
its own, over the image of the step before. FOLDER is the context: COPY and ADD take files from
it, except those that .dockerignore names. A step is done again only if something that it depends
on has changed.

Images in FROM that are not here are pulled. With --secret, a RUN --mount=type=secret,id=ID gets
a secret, which is in no layer, log or history. A RUN --mount=type=cache keeps its folder between
builds, until cove image prune. RUN may reach what --network allows, as for cove create, and what
--allow adds.

ADD of a URL, --mount=type=ssh and other platforms are not supported. They are refused, with the
line, before anything runs.`,
		Example: `  cove image build -t app .
  cove image build -t app:2 -f docker/Dockerfile --target test --build-arg VERSION=2 .
  cove image build -t app --network defaults --allow 10.1.2.3:8443 .
  cove image build -t app --secret id=npm,src=$HOME/.npmrc --network defaults .`,
		Args: exactArgs("the folder of the context, such as ."),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		req, err := o.request(cmd)
		if err != nil {
			return err
		}
		text, name, ignore, err := buildcontext.Source{Dir: args[0], Dockerfile: o.file, In: inv.In}.Read()
		if err != nil {
			return err
		}
		req.Dockerfile, req.File = string(text), name
		all, err := images(ctx, inv)
		if err != nil {
			return err
		}
		tree, done := sendContext(ctx, args[0], ignore)
		image, err := buildImage(ctx, inv, all, req, tree)
		sent, failed := done()
		if err = errors.Join(failed, err); err != nil {
			return err
		}
		if len(sent.LeftOut) > 0 {
			inv.say("Left out of the context, because no image can have them: %s", printable.Line(strings.Join(sent.LeftOut, ", ")))
		}
		if inv.global.quiet && !inv.global.json { // programs want to know what to name
			fmt.Fprintln(inv.Out, printable.Line(image.Digest))
			return nil
		}
		if name = shortDigest(image.Digest); len(req.Names) > 0 { // it may have other names, of earlier builds
			name = req.Names[0]
		}
		return showImage(inv, image, name, "is built")
	})
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "", "the Dockerfile; - for the standard input (default: Dockerfile in FOLDER, or else Containerfile)")
	f.StringArrayVarP(&o.names, "tag", "t", nil, "call the image `NAME`, such as app:1 (repeatable)")
	f.StringVar(&o.target, "target", "", "build this `STAGE`, by its name or number (default: the last one)")
	f.StringArrayVar(&o.args, "build-arg", nil, "the value of an ARG, `K=V`; K alone: from the environment (repeatable)")
	f.StringArrayVar(&o.secrets, "secret", nil, "a secret for RUN: `id=ID,src=FILE`, or id=ID,env=VARIABLE (repeatable)")
	f.StringVar(&o.network, "network", "", "what RUN may reach: open, none, agent or defaults (see cove help policy; default: no rules)")
	f.StringArrayVar(&o.allow, "allow", nil, "what else RUN may reach, as cove policy allow takes it: a name, or an address, such as 10.1.2.3:8443 (repeatable)")
	must(cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions(policy.Presets, cobra.ShellCompDirectiveNoFileComp)))
	f.StringVar(&o.memory, "memory", "", "memory limit of each RUN, such as 2G or 512M (default: the server's)")
	f.IntVar(&o.cpus, "cpus", 0, "how many CPUs each RUN may use (default: the server's)")
	f.BoolVar(&o.noCache, "no-cache", false, "do every step again")
	f.BoolVar(&o.pull, "pull", false, "ask the registries again which images the names in FROM are")
	return cmd
}

// sendContext packs a folder in the background. done ends that, and says what was sent. Its error
// says why not all was sent, unless tree was simply not read to its end.
func sendContext(ctx context.Context, dir string, ignore dockerignore.Patterns) (tree io.Reader, done func() (buildcontext.Sent, error)) {
	r, w := io.Pipe()
	var sent buildcontext.Sent
	ended := make(chan error, 1)
	go func() {
		var err error
		sent, err = buildcontext.Write(ctx, w, dir, ignore)
		_ = w.CloseWithError(err) // never fails
		ended <- err
	}()
	return r, func() (buildcontext.Sent, error) {
		_ = r.Close() // never fails
		err := <-ended
		if errors.Is(err, io.ErrClosedPipe) {
			err = nil
		}
		return sent, err
	}
}

func (o *imageBuildOptions) request(cmd *cobra.Command) (req cove.ImageBuild, err error) {
	req = cove.ImageBuild{Names: o.names, Target: o.target, NoCache: o.noCache, Pull: o.pull, Args: map[string]string{}, Secrets: map[string][]byte{}}
	for _, arg := range o.args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				continue // as if it was not given
			}
		}
		req.Args[name] = value
	}
	for _, text := range o.secrets {
		id, data, err := readBuildSecret(cmd, text)
		if err != nil {
			return req, err
		}
		req.Secrets[id] = data
	}
	allow, err := parseRules(cmd, o.allow, "allow")
	if err != nil {
		return req, err
	}
	if o.network != "" || len(allow) > 0 {
		p := netrules.Add(sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: cmp.Or(o.network, "open")}}}, allow)
		req.NetworkPolicy = &p
	}
	machine := machineFlags{memory: o.memory, cpus: o.cpus}
	limits, err := machine.config(cmd)
	if err == nil && limits != nil {
		req.CPUs, req.RAMMB = limits.CPUs, limits.RAMMB
	}
	return req, err
}

// maxBuildSecret bounds a secret.
const maxBuildSecret = 500 << 10

// readBuildSecret reads id=ID,src=FILE or id=ID,env=VARIABLE.
func readBuildSecret(cmd *cobra.Command, text string) (id string, data []byte, err error) {
	var file, variable string
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "id":
			id = value
		case "src", "source":
			file = value
		case "env":
			variable = value
		case "type": // file or env, which the rest says
		default:
			return "", nil, usagef(cmd, "--secret: unknown part %q; write id=ID,src=FILE or id=ID,env=VARIABLE", key)
		}
	}
	switch {
	case id == "" || file != "" && variable != "":
		return "", nil, usagef(cmd, "--secret: write id=ID,src=FILE or id=ID,env=VARIABLE")
	case file != "":
		f, err := os.Open(file)
		if err != nil {
			return "", nil, fmt.Errorf("secret %s: %w", id, err)
		}
		defer f.Close()
		if data, err = io.ReadAll(io.LimitReader(f, maxBuildSecret+1)); err != nil {
			return "", nil, fmt.Errorf("secret %s: %w", id, err)
		}
		if len(data) > maxBuildSecret {
			return "", nil, fail.Newf("bad_input", "", "secret %s has more than %d bytes", id, maxBuildSecret)
		}
		return id, data, nil
	}
	if variable == "" {
		variable = id
	}
	value, ok := os.LookupEnv(variable)
	if !ok {
		return "", nil, fail.Newf("bad_input", "set it, or give a file: --secret id="+id+",src=FILE", "secret %s: the environment has no %s", id, variable)
	}
	return id, []byte(value), nil
}

// buildImage has an image built, and shows how far that is.
func buildImage(ctx context.Context, inv *invocation, all cove.Images, req cove.ImageBuild, tree io.Reader) (cove.Image, error) {
	p := inv.newProgress("sending the context", 0)
	out := &buildOutput{inv: inv, progress: p}
	image, err := all.Build(ctx, req, countingReader{tree, p}, out.event)
	p.Close()
	if err != nil && len(out.last) > 0 {
		err = stepError{err, out.last}
		if inv.global.quiet || inv.global.json {
			for _, line := range out.last {
				inv.warn("  %s", line)
			}
		}
	}
	return image, err
}

// maxLastLines is how much of a command's output is told again if it fails.
const maxLastLines = 50

// buildOutput shows the events of a build.
type buildOutput struct {
	inv      *invocation
	progress *progress
	last     []string // lines of the RUN that runs
}

func (o *buildOutput) event(e cove.ImageBuildEvent) {
	switch {
	case e.Type == cove.BuildPulling && e.Pull != nil:
		o.progress.say(imageNote("pulling "+e.Text, *e.Pull))
	case e.Type == cove.BuildWarning:
		o.progress.above(func() { o.inv.say("warning: %s", printable.Line(e.Text)) })
	case e.Type == cove.BuildStep:
		o.last = nil
		note := ""
		if e.Cached {
			note = "cached: "
		}
		o.progress.above(func() {
			o.inv.say("[%s %d/%d] %s%s", printable.Word(e.Stage), e.Step, e.Steps, note, printable.Line(e.Text))
		})
		o.progress.begin(stepNote(e))
	case e.Type == cove.BuildOutput:
		for line := range strings.Lines(e.Output) {
			o.line(lastOverwrite(line))
		}
	case e.Type == cove.BuildRefused && e.Refused != nil:
		line := "refused by the network rules: " + netrules.Target(*e.Refused)
		if e.Refused.Hint != "" {
			line += "; " + e.Refused.Hint
		}
		o.line(line)
	}
}

// line shows a line of a command, and keeps it.
func (o *buildOutput) line(text string) {
	text = printable.Line(text)
	if o.last = append(o.last, text); len(o.last) > maxLastLines {
		o.last = o.last[1:]
	}
	o.progress.above(func() { o.inv.say("  %s", text) })
}

// lastOverwrite is a line as a terminal shows it at its end, if programs wrote it several times over
// itself, as apt does.
func lastOverwrite(line string) string {
	line = strings.TrimRight(line, "\r\n")
	return line[strings.LastIndexByte(line, '\r')+1:]
}

// stepNote says which step is being done.
func stepNote(e cove.ImageBuildEvent) string {
	const most = 60 // characters of the instruction, so that the line fits
	text, _, cut := strings.Cut(e.Text, "\n")
	if runes := []rune(text); len(runes) > most {
		text, cut = string(runes[:most]), true
	}
	if cut {
		text += " …"
	}
	return fmt.Sprintf("step %d/%d %s", e.Step, e.Steps, printable.Line(text))
}

// stepError is the error of a RUN with the last lines of its output.
type stepError struct {
	error
	lines []string
}

func (e stepError) Unwrap() error { return e.error }
