package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// A Document is a Dockerfile that was read. It is never changed.
type Document struct {
	name   string
	escape rune
	args   []argument // before the first FROM
	stages []source
}

// argument is one name of an ARG.
type argument struct {
	line  int
	name  string
	value *string // nil: it has no default
}

// source is a stage as it is in the Dockerfile.
type source struct {
	name     string
	base     string // not expanded
	platform string // not expanded
	line     int
	nodes    []*parser.Node // its instructions
}

// Parse reads a Dockerfile. Its errors call it name. They are of the package fail, with the code
// dockerfile_bad, or dockerfile_unsupported if the Dockerfile is right but can't be done here.
func Parse(src []byte, name string) (*Document, error) {
	if len(src) > MaxSize {
		return nil, fail.Newf("dockerfile_bad", "", "%s has more than %d bytes", name, MaxSize)
	}
	if n := bytes.Count(src, []byte("\n")); n > maxLines {
		return nil, fail.Newf("dockerfile_bad", "", "%s has more than %d lines", name, maxLines)
	}
	if i := bytes.IndexByte(src, 0); i >= 0 {
		return nil, bad(name, bytes.Count(src[:i], []byte("\n"))+1, "it has a zero byte")
	}
	if !utf8.Valid(src) {
		return nil, fail.Newf("dockerfile_bad", "", "%s is not UTF-8", name)
	}
	if err := checkSyntax(src, name); err != nil {
		return nil, err
	}
	parsed, err := parser.Parse(bytes.NewReader(src))
	if err != nil {
		return nil, located(name, 0, err)
	}
	d := &Document{name: name, escape: parsed.EscapeToken}
	if len(parsed.AST.Children) > maxInstructions {
		return nil, bad(name, parsed.AST.Children[maxInstructions].StartLine, "it has more than %d instructions", maxInstructions)
	}
	for _, node := range parsed.AST.Children {
		if err := d.add(node); err != nil {
			return nil, err
		}
	}
	if len(d.stages) == 0 {
		return nil, fail.Newf("dockerfile_bad", "", "%s has no FROM", name)
	}
	return d, nil
}

// officialSyntax is the front end that this package has the parser of, at any version.
var officialSyntax = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(docker\.io/)?docker/dockerfile(-upstream)?([:@].*)?$`)
})

// checkSyntax refuses a Dockerfile in another language.
func checkSyntax(src []byte, name string) error {
	syntax, _, where, ok := parser.DetectSyntax(src)
	if !ok || officialSyntax().MatchString(strings.TrimSpace(syntax)) {
		return nil
	}
	line := 1
	if len(where) > 0 {
		line = where[0].Start.Line
	}
	return unsupported(name, line, "remove the line, if the file is a plain Dockerfile", "the syntax %.200q is not supported; docker/dockerfile is", syntax)
}

// add takes an instruction, which is refused if it can be told already.
func (d *Document) add(node *parser.Node) error {
	line := node.StartLine
	if len(node.Original) > maxText {
		return bad(d.name, line, "the instruction has more than %d bytes", maxText)
	}
	parsed, err := instructions.ParseInstruction(node)
	if err != nil {
		return located(d.name, line, err)
	}
	if from, ok := parsed.(*instructions.Stage); ok {
		d.stages = append(d.stages, source{name: strings.ToLower(from.Name), base: from.BaseName, platform: from.Platform, line: line})
		return nil
	}
	if len(d.stages) == 0 {
		arg, ok := parsed.(*instructions.ArgCommand)
		if !ok {
			return bad(d.name, line, "%s before the first FROM; only ARG can be there", strings.ToUpper(node.Value))
		}
		for _, a := range arg.Args {
			d.args = append(d.args, argument{line, a.Key, a.Value})
		}
		return nil
	}
	if err := d.check(parsed, line, false); err != nil {
		return err
	}
	last := &d.stages[len(d.stages)-1]
	last.nodes = append(last.nodes, node)
	return nil
}

// check refuses an instruction that can't be done. It does not check values with variables until
// these are expanded.
func (d *Document) check(parsed any, line int, expanded bool) error {
	known := func(values ...string) bool {
		return expanded || !strings.ContainsRune(strings.Join(values, ""), '$')
	}
	switch c := parsed.(type) {
	case *instructions.RunCommand:
		return d.checkRun(c, line, expanded)
	case *instructions.AddCommand:
		if c.Checksum != "" || c.KeepGitDir != nil {
			return unsupported(d.name, line, "download it by a RUN", "ADD --checksum and --keep-git-dir are about downloads, which are not supported")
		}
		for _, src := range c.SourcePaths {
			if known(src) && isRemote(src) {
				return unsupported(d.name, line, "download it by a RUN, such as: RUN curl -fLO URL", "ADD of %.200q is not supported: it is not a file of the context", src)
			}
		}
		return d.checkFiles(c.SourcesAndDest, c.Chmod, line, known)
	case *instructions.CopyCommand:
		for _, src := range c.SourcePaths {
			if known(src) && isRemote(src) {
				return bad(d.name, line, "COPY of %.200q, which is not a file", src)
			}
		}
		if strings.ContainsRune(c.From, '$') {
			return bad(d.name, line, "--from=%.200q has a variable; a stage of its own can have one: FROM %.200[1]s AS NAME", c.From)
		}
		return d.checkFiles(c.SourcesAndDest, c.Chmod, line, known)
	case *instructions.HealthCheckCommand:
		if c.Health != nil && c.Health.StartInterval != 0 {
			return unsupported(d.name, line, "remove --start-interval", "HEALTHCHECK --start-interval is not supported")
		}
	case *instructions.StopSignalCommand:
		if known(c.Signal) && !isSignal(c.Signal) {
			return bad(d.name, line, "%.100q is not a signal", c.Signal)
		}
	}
	return nil
}

func (d *Document) checkFiles(files instructions.SourcesAndDest, chmod string, line int, known func(...string) bool) error {
	for _, f := range files.SourceContents {
		if f.Path == "." || f.Path == ".." || strings.Contains(f.Path, "/") {
			return bad(d.name, line, "%.100q is not the name of a file", f.Path)
		}
	}
	if chmod != "" && known(chmod) {
		if err := CheckMode(chmod); err != nil {
			return bad(d.name, line, "%v", err)
		}
	}
	return nil
}

func (d *Document) checkRun(c *instructions.RunCommand, line int, expanded bool) error {
	if instructions.GetSecurity(c) != instructions.SecuritySandbox {
		return unsupported(d.name, line, "remove --security: it runs as root in a sandbox of its own", "RUN --security=%s is not supported", instructions.GetSecurity(c))
	}
	if len(c.FlagsUsed) > 0 && strings.Contains(strings.Join(c.FlagsUsed, " "), "device") {
		return unsupported(d.name, line, "remove --device", "RUN --device is not supported")
	}
	if instructions.GetNetwork(c) == instructions.NetworkHost {
		return unsupported(d.name, line, "remove --network=host: the default network is used", "RUN --network=host is not supported")
	}
	if len(c.CmdLine) == 0 && !c.PrependShell {
		return bad(d.name, line, "RUN [] runs nothing")
	}
	if !expanded {
		// A type without a variable is known before the rest of the mount is.
		if err := c.Expand(func(word string) (string, error) {
			if strings.ContainsRune(word, '$') {
				return "", errVariable
			}
			return word, nil
		}); errors.Is(err, errVariable) {
			return nil
		} else if err != nil {
			return located(d.name, line, err)
		}
	}
	for _, m := range instructions.GetMounts(c) {
		if m.Type == instructions.MountTypeSSH {
			return unsupported(d.name, line, "give it a key: RUN --mount=type=secret,id=NAME", "RUN --mount=type=ssh is not supported")
		}
	}
	return nil
}

var errVariable = errors.New("it has a variable")

// isRemote reports whether a source would have to be downloaded.
func isRemote(src string) bool {
	for _, scheme := range []string{"http://", "https://", "git://", "ssh://", "git@"} {
		if strings.HasPrefix(src, scheme) {
			return true
		}
	}
	return false
}

var signalNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([1-9]|[1-5][0-9]|6[0-4])$`) })

// isSignal reports whether a text is a signal as STOPSIGNAL has it: a number, or a name.
func isSignal(text string) bool {
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG")
	return signalNumber().MatchString(text) || unix.SignalNum(name) != 0 || realtime().MatchString(name)
}

var realtime = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^SIGRT(MIN(\+([0-9]|1[0-5]))?|MAX(-([0-9]|1[0-4]))?)$`)
})

// at adds the file and line of a Dockerfile to an error.
func at(name string, line int, err *fail.Error) error {
	err.Message = fmt.Sprintf("%s:%d: %s", name, line, err.Message)
	return err
}

// located is an error of BuildKit's parser, with its line; 0: it says which. An error that is
// located stays as it is.
func located(name string, line int, err error) error {
	if f, ok := errors.AsType[*fail.Error](err); ok {
		return f
	}
	if where, ok := errors.AsType[*parser.LocationError](err); ok && line == 0 && len(where.Locations) > 0 && len(where.Locations[0]) > 0 {
		line = where.Locations[0][0].Start.Line
	}
	return bad(name, max(line, 1), "%.500s", err.Error())
}
