package dockerfile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// plan is the state that the stages of one call of Stages share.
type plan struct {
	doc    *Document
	args   map[string]string // of the build
	global environment       // what FROM sees, and an ARG without a value
	needed []bool            // by Index
	ends   map[int]*end      // the ends of stages, once their steps are known
	size   int               // bytes that it keeps
}

// end is the state at the end of a stage. A stage that starts from it begins with that.
type end struct {
	config   v1.Config
	author   string
	scope    environment // of a RUN
	declared []string    // names of ARG
}

// Stages returns the stages that a target needs. Each stage comes after those that it needs, so
// the target is the last. target is a stage's name or its number; empty: the last stage.
//
// args are the build's arguments. If no ARG declares an argument, it changes nothing, as in
// Docker; Undeclared names it. Predefined arguments (proxies, BUILDKIT_…) need no ARG. Arguments
// that are too large together are refused. The platform is the machine's, and the only one.
func (d *Document) Stages(target string, args map[string]string, platform v1.Platform) ([]Stage, error) {
	p := &plan{doc: d, args: args, needed: make([]bool, len(d.stages)), ends: map[int]*end{}}
	if err := p.checkArgs(); err != nil {
		return nil, err
	}
	last, err := d.target(target)
	if err != nil {
		return nil, err
	}
	if err := p.setGlobal(d.stages[last].name, platform); err != nil {
		return nil, err
	}
	all := make([]Stage, len(d.stages))
	for i := range d.stages {
		if all[i], err = p.stage(i, platform); err != nil {
			return nil, err
		}
	}
	if err := p.need(all, last); err != nil {
		return nil, err
	}
	var stages []Stage
	for i, stage := range all {
		if p.needed[i] {
			stages = append(stages, stage)
		}
	}
	return stages, nil
}

// Names are the names of the stages, for those who choose a target.
func (d *Document) Names() (names []string) {
	for _, s := range d.stages {
		if s.name != "" {
			names = append(names, s.name)
		}
	}
	return names
}

// target is the Index of the stage to build.
func (d *Document) target(name string) (int, error) {
	if name == "" {
		return len(d.stages) - 1, nil
	}
	if i := d.before(name, len(d.stages)); i >= 0 {
		return i, nil
	}
	if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(d.stages) {
		return i, nil
	}
	hint := "leave --target out: no stage has a name"
	if names := d.Names(); len(names) > 0 {
		hint = "it has: " + strings.Join(names, ", ")
	}
	return 0, fail.Newf("dockerfile_bad", hint, "%s has no stage %.100q", d.name, name)
}

// before is the Index of the last stage of a name before another one, or -1.
func (d *Document) before(name string, index int) int {
	for i := index - 1; i >= 0; i-- {
		if d.stages[i].name != "" && d.stages[i].name == strings.ToLower(name) {
			return i
		}
	}
	return -1
}

// predefined are arguments that need no ARG. Those that are not proxies change nothing here.
var predefined = []string{
	"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy",
	"BUILDKIT_CACHE_MOUNT_NS", "BUILDKIT_CONTEXT_KEEP_GIT_DIR", "BUILDKIT_INLINE_CACHE", "BUILDKIT_MULTI_PLATFORM", "BUILDKIT_SANDBOX_HOSTNAME", "BUILDKIT_SYNTAX", "BUILDKIT_DOCKERFILE_CHECK", "SOURCE_DATE_EPOCH",
	"BUILDPLATFORM", "BUILDOS", "BUILDOSVERSION", "BUILDARCH", "BUILDVARIANT",
	"TARGETPLATFORM", "TARGETOS", "TARGETOSVERSION", "TARGETARCH", "TARGETVARIANT", "TARGETSTAGE",
}

// checkArgs refuses arguments that are too large.
func (p *plan) checkArgs() error {
	size := 0
	for name, value := range p.args {
		if size += len(name) + len(value); size > maxWord {
			return fail.Newf("dockerfile_bad", "", "the build's arguments have more than %d bytes", maxWord)
		}
	}
	return nil
}

// Undeclared says which arguments no ARG of the Dockerfile declares, and which names are declared, for
// people. As in Docker, an undeclared argument changes nothing.
func (d *Document) Undeclared(args map[string]string) (names []string, declared string) {
	all := d.declared()
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !slices.Contains(all, name) && !slices.Contains(predefined, name) {
			names = append(names, name)
		}
	}
	return names, brief(all)
}

// declared are the arguments that an ARG declares, sorted.
func (d *Document) declared() (declared []string) {
	for _, a := range d.args {
		declared = append(declared, a.name)
	}
	for _, s := range d.stages {
		for _, node := range s.nodes {
			parsed, err := instructions.ParseInstruction(node)
			if err != nil {
				continue // Steps tells of it
			}
			if o, ok := parsed.(*instructions.OnbuildCommand); ok {
				if parsed, err = trigger(o.Expression); err != nil {
					continue // it may never run
				}
			}
			if arg, ok := parsed.(*instructions.ArgCommand); ok {
				for _, a := range arg.Args {
					declared = append(declared, a.Key)
				}
			}
		}
	}
	slices.Sort(declared)
	return slices.Compact(declared)
}

// brief is a list for a message.
func brief(names []string) string {
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// setGlobal works out the ARG before the first FROM.
func (p *plan) setGlobal(target string, platform v1.Platform) error {
	if target == "" {
		target = "default"
	}
	for _, a := range [][2]string{
		{"BUILDPLATFORM", platform.String()}, {"BUILDOS", platform.OS}, {"BUILDOSVERSION", platform.OSVersion}, {"BUILDARCH", platform.Architecture}, {"BUILDVARIANT", platform.Variant},
		{"TARGETPLATFORM", platform.String()}, {"TARGETOS", platform.OS}, {"TARGETOSVERSION", platform.OSVersion}, {"TARGETARCH", platform.Architecture}, {"TARGETVARIANT", platform.Variant},
		{"TARGETSTAGE", target},
	} {
		value, ok := p.args[a[0]]
		if !ok {
			value = a[1]
		}
		p.global.set(a[0], value)
	}
	for _, a := range p.doc.args {
		value, ok := p.args[a.name]
		switch {
		case ok:
		case a.value == nil:
			continue
		default:
			var err error
			if value, err = p.expand(*a.value, &p.global); err != nil {
				return located(p.doc.name, a.line, err)
			}
		}
		p.global.set(a.name, value)
	}
	return nil
}

// stage is the FROM of a stage, expanded.
func (p *plan) stage(index int, platform v1.Platform) (Stage, error) {
	s := p.doc.stages[index]
	base, err := p.expand(s.base, &p.global)
	if err != nil {
		return Stage{}, located(p.doc.name, s.line, err)
	}
	if base == "" {
		return Stage{}, at(p.doc.name, s.line, fail.Newf("dockerfile_bad", "give it a value: --build-arg NAME=VALUE, or ARG NAME=VALUE before the first FROM", "FROM %.200s names no image: its variables are empty", s.base))
	}
	if s.platform != "" {
		want, err := p.expand(s.platform, &p.global)
		if err != nil {
			return Stage{}, located(p.doc.name, s.line, err)
		}
		parsed, err := v1.ParsePlatform(want)
		if err != nil || want == "" {
			return Stage{}, bad(p.doc.name, s.line, "FROM --platform=%.100s: %.100q is not a platform", s.platform, want)
		}
		if parsed.OS != platform.OS || parsed.Architecture != platform.Architecture {
			return Stage{}, unsupported(p.doc.name, s.line, "remove --platform, or build on such a machine", "FROM --platform=%.100s is not supported: this machine is %s", want, platform.String())
		}
	}
	stage := Stage{Index: index, Name: s.name, Line: s.line, FromStage: p.doc.before(base, index), plan: p}
	if stage.FromStage < 0 {
		stage.From = base
	}
	return stage, nil
}

// need marks a stage, and those that it needs.
func (p *plan) need(all []Stage, index int) error {
	if p.needed[index] {
		return nil
	}
	p.needed[index] = true
	var on []int
	nodes := p.doc.stages[index].nodes
	if from := all[index].FromStage; from >= 0 {
		on = append(on, from)
	}
	for _, node := range nodes {
		parsed, err := instructions.ParseInstruction(node)
		if err != nil {
			return located(p.doc.name, node.StartLine, err)
		}
		more, err := p.sources(parsed, index, node.StartLine)
		if err != nil {
			return err
		}
		on = append(on, more...)
	}
	if from := all[index].FromStage; from >= 0 { // its triggers run here
		for _, node := range p.doc.stages[from].nodes {
			o, ok := onbuild(node)
			if !ok {
				continue
			}
			parsed, err := trigger(o)
			if err != nil {
				return located(p.doc.name, node.StartLine, err)
			}
			more, err := p.sources(parsed, index, node.StartLine)
			if err != nil {
				return err
			}
			on = append(on, more...)
		}
	}
	for _, i := range on {
		if err := p.need(all, i); err != nil {
			return err
		}
	}
	return nil
}

// sources are the stages that an instruction of a stage has files of.
func (p *plan) sources(parsed any, index, line int) (all []int, err error) {
	add := func(from string) error {
		i, err := p.doc.find(from, index, line)
		if i >= 0 {
			all = append(all, i)
		}
		return err
	}
	switch c := parsed.(type) {
	case *instructions.CopyCommand:
		if c.From != "" {
			err = add(c.From)
		}
	case *instructions.RunCommand:
		for _, m := range instructions.GetMounts(c) {
			if m.From != "" && err == nil {
				err = add(m.From)
			}
		}
	}
	return all, err
}

// find is the Index of the stage that a --from or from= means, before the stage at hand; -1: it
// is an image.
func (d *Document) find(from string, index, line int) (int, error) {
	if i := d.before(from, index); i >= 0 {
		return i, nil
	}
	if i := d.before(from, len(d.stages)); i >= 0 {
		return -1, bad(d.name, line, "the stage %.100q is not before this one (line %d)", from, d.stages[i].line)
	}
	i, err := strconv.Atoi(from)
	switch {
	case err == nil && i >= 0 && i < index:
		return i, nil
	case err == nil:
		return -1, bad(d.name, line, "there is no stage %d before this one, which is stage %d", i, index)
	case strings.EqualFold(from, Scratch):
		return -1, bad(d.name, line, "there is nothing in scratch")
	}
	return -1, nil
}
