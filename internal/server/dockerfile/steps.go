package dockerfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// DefaultPath is the PATH of an image that says none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// stepper makes the steps of a stage.
type stepper struct {
	*plan
	stage    *Stage
	config   v1.Config
	author   string
	scope    environment
	declared []string
	cmdSet   bool
	triggers bool // the instruction is the base's
	steps    []Step
}

// Steps returns the steps of a stage. base is the configuration of the image that it starts
// from; nil if it starts from nothing (scratch). If the stage starts from another one, Steps
// must have been called for that stage before. Its last configuration then counts, and base
// does not matter.
//
// Triggers of the base (ONBUILD) are the first steps.
func (st *Stage) Steps(base *v1.ConfigFile) ([]Step, error) {
	s := &stepper{plan: st.plan, stage: st}
	triggers, err := s.begin(base)
	if err != nil {
		return nil, err
	}
	s.triggers = true
	for _, expression := range triggers {
		parsed, err := trigger(expression)
		if err == nil {
			err = s.step(parsed, st.Line, expression)
		}
		if err != nil {
			return nil, located(s.doc.name, st.Line, fmt.Errorf("ONBUILD %.200s of the base: %w", expression, err))
		}
	}
	s.triggers = false
	for _, node := range s.doc.stages[st.Index].nodes {
		parsed, err := instructions.ParseInstruction(node)
		if err == nil {
			err = s.step(parsed, node.StartLine, node.Original)
		}
		if err != nil {
			return nil, located(s.doc.name, node.StartLine, err)
		}
	}
	s.ends[st.Index] = &end{config: s.config, author: s.author, scope: s.scope, declared: s.declared}
	return s.steps, nil
}

// begin sets the state that a stage takes from its base. It returns the base's triggers.
func (s *stepper) begin(base *v1.ConfigFile) (triggers []string, err error) {
	if from := s.stage.FromStage; from >= 0 {
		e := s.ends[from]
		if e == nil {
			return nil, fmt.Errorf("the steps of stage %d were not asked for before those of stage %d", from, s.stage.Index)
		}
		s.config, s.author, s.scope, s.declared = e.config, e.author, e.scope.clone(), slices.Clone(e.declared)
	} else if base != nil {
		s.config, s.author = base.Config, base.Author
	}
	triggers, s.config.OnBuild = s.config.OnBuild, nil
	if len(triggers) > maxEntries || len(s.config.Env) > maxEntries || len(s.config.Labels) > maxEntries {
		return nil, bad(s.doc.name, s.stage.Line, "the base has more than %d variables, labels or triggers", maxEntries)
	}
	if s.stage.FromStage < 0 {
		for _, v := range s.config.Env {
			name, value, _ := strings.Cut(v, "=")
			s.scope.set(name, value)
		}
		if err := s.room(&s.scope); err != nil {
			return nil, bad(s.doc.name, s.stage.Line, "the base: %v", err)
		}
	}
	if err := s.take(stepCost + entryCost*len(s.scope.names)); err != nil {
		return nil, located(s.doc.name, s.stage.Line, err)
	}
	if _, ok := shell.EnvsFromSlice(s.config.Env).Get("PATH"); !ok {
		s.config.Env = append(slices.Clip(s.config.Env), "PATH="+DefaultPath)
		s.scope.set("PATH", DefaultPath)
	}
	if s.config.WorkingDir != "" {
		s.config.WorkingDir = path.Join("/", s.config.WorkingDir)
	}
	return triggers, nil
}

// room bounds an environment, which each step may have.
func (s *stepper) room(e *environment) error {
	size := 0
	for name, value := range e.values {
		size += len(name) + len(value)
	}
	if size > maxWord || len(e.names) > maxEntries {
		return fmt.Errorf("its environment has more than %d variables, or %d bytes", maxEntries, maxWord)
	}
	return nil
}

// trigger parses an instruction of ONBUILD.
func trigger(expression string) (any, error) {
	if len(expression) > maxText {
		return nil, fmt.Errorf("it has more than %d bytes", maxText)
	}
	parsed, err := parser.Parse(strings.NewReader(expression))
	if err != nil {
		return nil, err
	}
	if len(parsed.AST.Children) != 1 {
		return nil, errors.New("a trigger must be one instruction")
	}
	command, err := instructions.ParseCommand(parsed.AST.Children[0])
	if err != nil {
		return nil, err
	}
	if _, ok := command.(*instructions.OnbuildCommand); ok {
		return nil, errors.New("a trigger can't set another trigger")
	}
	return command, nil
}

// onbuild is the trigger that an instruction sets, if it does.
func onbuild(node *parser.Node) (string, bool) {
	if !strings.EqualFold(node.Value, "onbuild") {
		return "", false
	}
	parsed, err := instructions.ParseInstruction(node)
	if err != nil {
		return "", false
	}
	return parsed.(*instructions.OnbuildCommand).Expression, true
}

// step adds what an instruction does.
func (s *stepper) step(parsed any, line int, text string) error {
	if err := s.expandAll(parsed); err != nil {
		return err
	}
	if err := s.doc.check(parsed, line, true); err != nil {
		return err
	}
	out := Step{Line: line, Text: text, OnBuild: s.triggers}
	if err := s.apply(parsed, &out); err != nil {
		return err
	}
	if err := s.room(&s.scope); err != nil {
		return err
	}
	if n := len(s.config.Labels) + len(s.config.ExposedPorts) + len(s.config.Volumes) + len(s.config.OnBuild); n > maxEntries {
		return fmt.Errorf("the image has more than %d labels, ports, volumes and triggers", maxEntries)
	}
	out.Config, out.Author = s.config, s.author
	if err := s.take(cost(out)); err != nil {
		return err
	}
	s.steps = append(s.steps, out)
	if c, ok := parsed.(*instructions.VolumeCommand); ok { // a step makes one folder
		for _, v := range c.Volumes[1:] {
			more := out
			more.Folder = volumeFolder(v)
			s.steps = append(s.steps, more)
		}
	}
	return nil
}

// volumeFolder is the folder of a volume. Docker makes it when a container starts; a sprite has it
// from its image. Empty: there is nothing to make.
func volumeFolder(volume string) string {
	if dir := path.Join("/", volume); dir != "/" {
		return dir
	}
	return ""
}

// expandAll expands the variables of an instruction, as it says itself.
func (s *stepper) expandAll(parsed any) error {
	if _, ok := parsed.(*instructions.ArgCommand); ok {
		return nil // it depends
	}
	if c, ok := parsed.(instructions.SupportsSingleWordExpansion); ok {
		if err := c.Expand(func(word string) (string, error) { return s.expand(word, &s.scope) }); err != nil {
			return err
		}
	}
	if c, ok := parsed.(instructions.SupportsSingleWordExpansionRaw); ok {
		return c.ExpandRaw(func(text string) (string, error) { return s.expandText(text, &s.scope) })
	}
	return nil
}

// apply applies an instruction to the configuration, and fills in the step.
func (s *stepper) apply(parsed any, out *Step) error {
	switch c := parsed.(type) {
	case *instructions.MaintainerCommand:
		s.author = c.Maintainer
		out.History = "MAINTAINER " + c.Maintainer
	case *instructions.EnvCommand:
		out.History = "ENV"
		s.config.Env = slices.Clone(s.config.Env)
		for _, e := range c.Env {
			s.scope.set(e.Key, e.Value)
			s.config.Env = withVariable(s.config.Env, e.Key, e.Value)
			out.History += " " + e.String()
		}
	case *instructions.ArgCommand:
		return s.arg(c, out)
	case *instructions.LabelCommand:
		out.History = "LABEL"
		s.config.Labels = cloned(s.config.Labels)
		for _, l := range c.Labels {
			s.config.Labels[l.Key] = l.Value
			out.History += " " + l.String()
		}
	case *instructions.RunCommand:
		return s.run(c, out)
	case *instructions.CopyCommand:
		return s.copy(c, out)
	case *instructions.AddCommand:
		return s.add(c, out)
	case *instructions.WorkdirCommand:
		dir := s.absolute(c.Path)
		s.config.WorkingDir = dir
		if dir != "/" {
			out.Folder = dir
		}
		out.History = "WORKDIR " + dir
	case *instructions.UserCommand:
		s.config.User = c.User
		out.History = "USER " + c.User
	case *instructions.CmdCommand:
		s.config.Cmd, s.cmdSet = s.withShell(c.ShellDependantCmdLine), true
		s.config.ArgsEscaped = true
		out.History = fmt.Sprintf("CMD %q", s.config.Cmd)
	case *instructions.EntrypointCommand:
		s.config.Entrypoint = s.withShell(c.ShellDependantCmdLine)
		if !s.cmdSet {
			s.config.Cmd = nil
		}
		out.History = fmt.Sprintf("ENTRYPOINT %q", s.config.Entrypoint)
	case *instructions.ShellCommand:
		s.config.Shell = c.Shell
		out.History = fmt.Sprintf("SHELL %v", c.Shell)
	case *instructions.HealthCheckCommand:
		h := c.Health
		s.config.Healthcheck = &v1.HealthConfig{Test: h.Test, Interval: h.Interval, Timeout: h.Timeout, StartPeriod: h.StartPeriod, Retries: h.Retries}
		out.History = fmt.Sprintf("HEALTHCHECK %q", h.Test)
	case *instructions.ExposeCommand:
		return s.expose(c, out)
	case *instructions.VolumeCommand:
		s.config.Volumes = cloned(s.config.Volumes)
		for _, v := range c.Volumes {
			if v == "" {
				return errors.New("a VOLUME without a name")
			}
			s.config.Volumes[v] = struct{}{}
		}
		out.Folder = volumeFolder(c.Volumes[0])
		out.History = fmt.Sprintf("VOLUME %v", c.Volumes)
	case *instructions.StopSignalCommand:
		s.config.StopSignal = c.Signal
		out.History = "STOPSIGNAL " + c.Signal
	case *instructions.OnbuildCommand:
		s.config.OnBuild = append(slices.Clip(s.config.OnBuild), c.Expression)
		out.History = "ONBUILD " + c.Expression
	default:
		return fmt.Errorf("the instruction %T is not known", parsed)
	}
	return nil
}

// cloned is a copy of a map that can be written.
func cloned[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return maps.Clone(m)
}

// withVariable sets a variable of a list, which is changed.
func withVariable(list []string, name, value string) []string {
	for i, v := range list {
		if had, _, _ := strings.Cut(v, "="); had == name {
			list[i] = name + "=" + value
			return list
		}
	}
	return append(list, name+"="+value)
}

// absolute is a path of the image, as seen from its working folder.
func (s *stepper) absolute(at string) string {
	if path.IsAbs(at) {
		return path.Clean(at)
	}
	return path.Join("/", s.config.WorkingDir, at)
}

// withShell is a command line as a program's arguments.
func (s *stepper) withShell(line instructions.ShellDependantCmdLine) []string {
	if !line.PrependShell {
		return line.CmdLine
	}
	sh := s.config.Shell
	if len(sh) == 0 {
		sh = []string{"/bin/sh", "-c"}
	}
	return append(slices.Clone(sh), strings.Join(line.CmdLine, " "))
}

// arg sets the arguments that an ARG declares.
func (s *stepper) arg(c *instructions.ArgCommand, out *Step) error {
	out.History = "ARG"
	for _, a := range c.Args {
		value, given := s.args[a.Key]
		switch {
		case given:
		case a.Value != nil:
			var err error
			if value, err = s.expand(*a.Value, &s.scope); err != nil {
				return err
			}
			given = true
		default:
			value, given = s.global.Get(a.Key)
		}
		out.History += " " + a.Key
		if given {
			s.scope.set(a.Key, value)
			out.History += "=" + value
		}
		if !slices.Contains(s.declared, a.Key) {
			s.declared = append(s.declared, a.Key)
		}
	}
	return nil
}

// expose adds ports.
func (s *stepper) expose(c *instructions.ExposeCommand, out *Step) error {
	s.config.ExposedPorts = cloned(s.config.ExposedPorts)
	var all []string
	for _, word := range c.Ports {
		if err := bounded(word, &s.scope); err != nil {
			return err
		}
		words, err := shell.NewLex(s.doc.escape).ProcessWords(word, &s.scope)
		if err != nil {
			return err
		}
		for _, text := range words {
			if err := s.take(len(text)); err != nil {
				return err
			}
			ports, err := portsOf(text)
			if err != nil {
				return err
			}
			for _, port := range ports {
				s.config.ExposedPorts[port] = struct{}{}
			}
			if all = append(all, ports...); len(all) > maxEntries {
				return fmt.Errorf("more than %d ports", maxEntries)
			}
		}
	}
	out.History = fmt.Sprintf("EXPOSE %v", all)
	return nil
}

// portsOf are the ports of a text such as 80, 53/udp or 7000-7010/tcp.
func portsOf(text string) ([]string, error) {
	numbers, protocol, _ := strings.Cut(text, "/")
	protocol = cmp.Or(strings.ToLower(protocol), "tcp")
	from, to, _ := strings.Cut(numbers, "-")
	to = cmp.Or(to, from)
	first, err := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if err != nil || err2 != nil || last < first || !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
		return nil, fmt.Errorf("%.100q is not a port, such as 80, 53/udp or 7000-7010", text)
	}
	if last-first >= maxEntries {
		return nil, fmt.Errorf("%.100q: more than %d ports", text, maxEntries)
	}
	var all []string
	for port := first; port <= last; port++ {
		all = append(all, strconv.FormatUint(port, 10)+"/"+protocol)
	}
	return all, nil
}

// copy fills a step with a COPY.
func (s *stepper) copy(c *instructions.CopyCommand, out *Step) error {
	cp := s.files(c.SourcesAndDest)
	cp.Chown, cp.Chmod, cp.Exclude, cp.Parents, cp.Link = c.Chown, c.Chmod, c.ExcludePatterns, c.Parents, c.Link
	if c.From != "" {
		i, err := s.from(c.From, out.Line)
		if err != nil {
			return err
		}
		if cp.FromStage = i; i < 0 {
			cp.FromImage = c.From
		}
	}
	cp.Context = len(cp.Sources) > 0 && c.From == ""
	out.Copy, out.History = cp, copyHistory("COPY", cp, c.DestPath)
	return nil
}

// add fills a step with an ADD.
func (s *stepper) add(c *instructions.AddCommand, out *Step) error {
	cp := s.files(c.SourcesAndDest)
	cp.Chown, cp.Chmod, cp.Exclude, cp.Link = c.Chown, c.Chmod, c.ExcludePatterns, c.Link
	cp.Add = c.Unpack == nil || *c.Unpack
	cp.Context = len(cp.Sources) > 0
	out.Copy, out.History = cp, copyHistory("ADD", cp, c.DestPath)
	return nil
}

// files are the sources and the destination of a copy.
func (s *stepper) files(c instructions.SourcesAndDest) *Copy {
	cp := &Copy{FromStage: -1, Sources: c.SourcePaths}
	for _, f := range c.SourceContents {
		cp.Inline = append(cp.Inline, File{Name: f.Path, Data: f.Data, Mode: 0o644})
	}
	cp.Dest = s.absolute(c.DestPath)
	last := c.DestPath[strings.LastIndexByte(c.DestPath, '/')+1:]
	cp.DestDir = last == "" || last == "." || cp.Dest == "/"
	return cp
}

func copyHistory(verb string, c *Copy, dest string) string {
	words := []string{verb}
	if c.Parents {
		words = append(words, "--parents")
	}
	if c.Chown != "" {
		words = append(words, "--chown="+c.Chown)
	}
	if c.Chmod != "" {
		words = append(words, "--chmod="+c.Chmod)
	}
	words = append(words, c.Sources...)
	for _, f := range c.Inline {
		words = append(words, "<<"+f.Name)
	}
	return strings.Join(append(words, dest, "# buildkit"), " ")
}

// from is find, for a stage whose files must be there.
func (s *stepper) from(from string, line int) (int, error) {
	i, err := s.doc.find(from, s.stage.Index, line)
	if err == nil && i >= 0 && !s.needed[i] {
		return i, unsupported(s.doc.name, line, "add to the Dockerfile's own stage: COPY --from="+from+" ...", "a trigger of the base image needs files of the stage %.100q, which nothing else needs", from)
	}
	return i, err
}

// run fills a step with a RUN.
func (s *stepper) run(c *instructions.RunCommand, out *Step) error {
	r := &Run{
		Env: s.scope.list(), Proxy: s.proxies(), Dir: cmp.Or(s.config.WorkingDir, "/"), User: s.config.User,
		Network: instructions.GetNetwork(c),
	}
	line := c.ShellDependantCmdLine
	if len(c.Files) > 0 {
		if len(line.CmdLine) != 1 || !line.PrependShell {
			return errors.New("a here-document needs a command line for a shell")
		}
		line = s.heredoc(line, r)
	}
	r.Argv = s.withShell(line)
	for _, m := range instructions.GetMounts(c) {
		mount, err := s.mount(m, out.Line)
		if err != nil {
			return err
		}
		r.Mounts = append(r.Mounts, mount)
	}
	out.Run = r
	var args []string
	for _, name := range s.declared {
		value, _ := s.scope.Get(name)
		args = append(args, name+"="+value)
	}
	if len(args) > 0 {
		args = append([]string{"|" + strconv.Itoa(len(args))}, args...)
	}
	out.History = "RUN " + strings.Join(append(args, r.Argv...), " ") + " # buildkit"
	return nil
}

// scriptFolder is where a script of a RUN is, as BuildKit has it.
const scriptFolder = "/dev/pipes"

// heredoc is the command line of a RUN with here-documents. One that begins with #! is a file.
func (s *stepper) heredoc(line instructions.ShellDependantCmdLine, r *Run) instructions.ShellDependantCmdLine {
	first := line.Files[0]
	if parser.MustParseHeredoc(line.CmdLine[0]) == nil { // the shell gets all of them
		full := line.CmdLine[0]
		for _, f := range line.Files {
			full += "\n" + f.Data + f.Name
		}
		line.CmdLine = []string{full}
		return line
	}
	data := first.Data
	if first.Chomp {
		data = parser.ChompHeredocContent(data)
	}
	if !strings.HasPrefix(first.Data, "#!") {
		line.CmdLine = []string{data}
		return line
	}
	script := path.Join(scriptFolder, path.Base(first.Name))
	r.Files = []File{{Name: script, Data: data, Mode: 0o755}}
	return instructions.ShellDependantCmdLine{CmdLine: []string{script}, PrependShell: true}
}

// proxies are the build's arguments that programs get without an ARG, in both spellings.
func (s *stepper) proxies() (all []string) {
	for _, name := range []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"} {
		value, ok := s.args[name]
		if !ok {
			value, ok = s.args[strings.ToUpper(name)]
		}
		if ok {
			all = append(all, strings.ToUpper(name)+"="+value, name+"="+value)
		}
	}
	return all
}

func (s *stepper) mount(m *instructions.Mount, line int) (Mount, error) {
	out := Mount{
		Type: string(m.Type), FromStage: -1, ReadOnly: m.ReadOnly, Required: m.Required, Size: m.SizeLimit, Sharing: string(m.CacheSharing),
	}
	if m.Target != "" {
		if out.Target = s.absolute(m.Target); out.Target == "/" {
			return out, errors.New("a mount can't be at /")
		}
	}
	if m.UID != nil {
		out.UID = uint32(*m.UID)
	}
	if m.GID != nil {
		out.GID = uint32(*m.GID)
	}
	if m.Mode != nil {
		mode := uint32(*m.Mode)
		out.Mode = &mode
	}
	if out.Type == MountSecret {
		return out, secret(m, &out)
	}
	if out.Target == "" {
		return out, fmt.Errorf("a mount of the type %s needs a target", out.Type)
	}
	if out.Type == MountTmpfs {
		return out, nil
	}
	if out.Type == MountCache {
		out.ID, out.Sharing = cmp.Or(m.CacheID, path.Clean(m.Target)), cmp.Or(out.Sharing, "shared")
		if m.From == "" {
			return out, nil
		}
	}
	out.Source = path.Join("/", m.Source)
	if m.From == "" {
		out.Context = true
		return out, nil
	}
	i, err := s.from(m.From, line)
	if out.FromStage = i; i < 0 {
		out.FromImage = m.From
	}
	return out, err
}

// secret fills a mount of a secret.
func secret(m *instructions.Mount, out *Mount) error {
	out.ID = cmp.Or(m.Source, m.CacheID)
	if out.ID == "" {
		out.ID = path.Base(m.Target)
	}
	if m.Env != nil {
		if out.Env = *m.Env; out.Env == "" || strings.ContainsAny(out.Env, "=\x00") {
			return fmt.Errorf("env=%.100q is not the name of a variable", out.Env)
		}
		return nil
	}
	out.Target = cmp.Or(out.Target, path.Join("/run/secrets", path.Base(out.ID)))
	return nil
}
