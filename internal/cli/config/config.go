// Package config reads the settings that stand in for flags. A repository has its settings
// in .cove/config.toml at the top of its work tree; the person has a file of their own. An
// unknown key or an invalid value in either file is an error. The package also reads the
// environment that the two give a sprite (env.go) and the setup script (setup.go).
//
// A repository may come from anybody, so its file may set less. It may not show a sprite
// more of the person's machine, choose the server, or bring an agent's files here past git
// (trees.go). Nor may it reach further than the person's own settings.
package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// A Key names a setting, as the files do: a dot leads into a table.
type Key string

// The settings.
const (
	Agent        Key = "agent"
	Profile      Key = "profile"
	AgentCommand Key = "agent_command"
	Permissions  Key = "permissions"
	Model        Key = "model"
	Role         Key = "role"
	Network      Key = "network"
	Dirty        Key = "dirty"
	Timeout      Key = "timeout"
	Image        Key = "image"
	Memory       Key = "memory"
	CPUs         Key = "cpus"
	Disk         Key = "disk"
	Include      Key = "include"
	Backend      Key = "backend"
	SetupScript  Key = "setup.script"
	SetupTimeout Key = "setup.timeout"
	PullAuto     Key = "pull.auto"
	PullInto     Key = "pull.into"
	PullRisky    Key = "pull.risky"
	PushAutoPull Key = "push.auto_pull"
	SyncExclude  Key = "sync.exclude"
)

// Dir is a repository's folder for cove, at the top of the work tree.
const Dir = ".cove"

// A Source is where a value is from.
type Source string

// The sources, the strongest first.
const (
	FromFlag        Source = "flag" // which is its command's business
	FromEnvironment Source = "environment"
	FromRepository  Source = "repository"
	FromPersonal    Source = "personal"
	BuiltIn         Source = "built-in"
)

// kind is the type of a value.
type kind int

const (
	text kind = iota
	duration
	size
	count
	boolean
	folders  // a list
	patterns // a list
	file
)

// list reports whether a value is a list.
func (k kind) list() bool { return k == folders || k == patterns }

// setting is what there is to know of a key.
type setting struct {
	key     Key
	kind    kind
	builtIn string
	choices []string
	usage   string

	// personal, if not empty, says why a repository may not set it.
	personal string

	// refuse, if not nil, says why a repository may not set it to this, or to a list with it.
	refuse func(value string) string
}

var settings = []setting{
	{key: Agent, builtIn: "claude", choices: agents.Names(), usage: "the agent that does the work"},
	{key: Profile, usage: "the server's profile for pushes into new sprites", personal: "a profile may give a job secrets and rules of the server"},
	{key: AgentCommand, usage: "the shell command that starts the agent acp in the sprite"},
	{key: Permissions, builtIn: "allow", choices: agents.PermissionChoices, usage: "the answer to the agent acp's requests for permission",
		personal: "it decides whether you are asked"},
	{key: Model, usage: "the model that the agent asks"},
	{key: Role, choices: agents.Roles, usage: "what the agent cove may do", personal: "it limits what comes with repositories, too"},
	{key: Network, builtIn: policy.Agent, choices: policy.Presets, usage: "what a job's sprite may reach"},
	{key: Dirty, builtIn: "refuse", choices: []string{"refuse", "include", "ignore"}, usage: "what a push does with uncommitted changes",
		refuse: func(v string) string {
			if v == "include" {
				return "only you can decide that what you have not committed leaves this machine"
			}
			return ""
		}},
	{key: Timeout, kind: duration, builtIn: "1h0m0s", usage: "the time limit of the agent"},
	{key: Image, usage: "the image that new sprites start from",
		refuse: func(v string) string {
			if strings.HasPrefix(v, "oci:") || strings.HasPrefix(v, "oci-archive:") || strings.HasPrefix(v, "docker-archive:") || v == "-" {
				return "only you can name a file of this machine"
			}
			return ""
		}},
	{key: Memory, kind: size, usage: "memory of new sprites"},
	{key: CPUs, kind: count, usage: "CPUs of new sprites"},
	{key: Disk, kind: size, usage: "disk limit of new sprites"},
	{key: Include, kind: folders, usage: "folders to show in new sprites", personal: "it shows sprites a part of your machine"},
	{key: SetupScript, kind: file, usage: "the script that prepares a sprite before the agent starts"},
	{key: SetupTimeout, kind: duration, builtIn: "10m0s", usage: "the time limit of the setup script"},
	{key: PullAuto, kind: boolean, usage: "whether run and job wait pull a job that has succeeded", refuse: unasked},
	{key: PullInto, builtIn: "ff", choices: []string{"ff", "branch", "none"}, usage: "what a pull does with the commits"},
	{key: PullRisky, builtIn: "hold", choices: []string{"hold", "list"}, usage: "what a pull does with files that could run code here",
		personal: "it guards you against what comes with repositories"},
	{key: PushAutoPull, kind: boolean, usage: "whether push waits for the job's end, and pulls", refuse: unasked},
	{key: SyncExclude, kind: patterns, usage: "what cove sync leaves out, besides --exclude: a list",
		refuse: func(v string) string {
			if strings.HasPrefix(v, "!") {
				return "only you can take back what is ignored"
			}
			return ""
		}},
	{key: Backend, usage: "the server to use, by its name in [backends]", personal: "it decides who gets your work"},
}

// unasked refuses a repository that commits are pulled unasked.
func unasked(value string) string {
	if value == "true" {
		return "only you can decide that commits arrive unasked"
	}
	return ""
}

// Keys are all settings, in the order that they are shown in.
func Keys() []Key {
	var keys []Key
	for _, s := range settings {
		keys = append(keys, s.key)
	}
	return keys
}

func find(key Key) (setting, bool) {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.key == key })
	if i < 0 {
		return setting{}, false
	}
	return settings[i], true
}

// among is a setting that may name agents of files, too.
func (s setting) among(agents []string) setting {
	if s.key == Agent {
		s.choices = slices.Concat(s.choices, agents)
	}
	return s
}

// Usage is what a setting is for, in a few words.
func Usage(key Key) string { s, _ := find(key); return s.usage }

// Default is a setting's built-in value; empty: it has none.
func Default(key Key) string { s, _ := find(key); return s.builtIn }

// Variable is the environment variable that sets a key.
func Variable(key Key) string {
	return "COVE_" + strings.ToUpper(strings.ReplaceAll(string(key), ".", "_"))
}

// check says what is wrong with a value.
func (s setting) check(value string) error {
	switch s.kind {
	case duration:
		if d, err := time.ParseDuration(value); err != nil || d <= 0 {
			return fmt.Errorf("%q is not a time such as 90s, 30m or 3h", value)
		}
	case size:
		if !sizePattern().MatchString(value) {
			return fmt.Errorf("%q is not a size such as 2G or 512M", value)
		}
	case count:
		if n, err := strconv.Atoi(value); err != nil || n < 1 {
			return fmt.Errorf("%q is not a number of at least 1", value)
		}
	case boolean:
		if value != "true" && value != "false" {
			return fmt.Errorf("%q is neither true nor false", value)
		}
	case folders:
		if !filepath.IsAbs(value) && !strings.HasPrefix(value, "~/") {
			return fmt.Errorf("%q must begin with / or ~/", value)
		}
	case patterns:
		return checkPattern(value)
	default:
		if value == "" && s.kind != file {
			return fmt.Errorf("it must not be empty")
		}
		if len(s.choices) > 0 && !slices.Contains(s.choices, value) {
			return fmt.Errorf("%q is not one of %s", value, strings.Join(s.choices, ", "))
		}
	}
	return nil
}

var sizePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]+(\.[0-9]+)?[KkMmGgTt]([iI]?[bB])?$`) })

// A Value is a setting's, with where it is from. List has the values of one that
// is a list, Text that of any other; empty: it is not set, and nothing is built in.
type Value struct {
	Text string
	List []string
	From Source
	File string // that it stands in; empty: in none
	Line int
	Note string // what else there is to say of it, for people
}

// A BackendServer is a server of the protocol, as the person's file names it.
type BackendServer struct {
	Name         string
	URL          string
	TokenFile    string   // a file that holds the token and nothing else
	TokenCommand []string // a command that prints it
}

// Settings are the values that are in force.
type Settings struct {
	Backends map[string]BackendServer
	AllTrees []Tree // of all repositories; Trees has those of one
	Files    []File

	agents []string // that files define
	values map[Source]map[Key]Value
}

// A File is one of those that settings are read from.
type File struct {
	Source Source
	Name   string
	Exists bool
}

// Places are where settings are looked for.
type Places struct {
	Personal string              // the person's file; empty: none
	Named    bool                // the person named it, so that it must exist
	Top      string              // top of the work tree; empty: there is no repository
	Getenv   func(string) string // nil: the environment sets nothing
}

// PersonalFile is the path of the person's settings, and whether COVE_CONFIG names it.
// It is empty if there is no home to look in.
func PersonalFile(getenv func(string) string) (name string, named bool) {
	if name = getenv("COVE_CONFIG"); name != "" {
		abs, err := filepath.Abs(name)
		if err != nil {
			abs = name
		}
		return abs, true
	}
	dir := getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", false
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "cove", "config.toml"), false
}

// Load reads the settings. Its errors are Problems; it then returns no settings.
func Load(p Places) (*Settings, error) {
	s := &Settings{agents: p.agentNames(), values: map[Source]map[Key]Value{BuiltIn: {}, FromEnvironment: {}, FromPersonal: {}, FromRepository: {}}}
	var problems Problems
	for _, set := range settings {
		set = set.among(s.agents)
		s.values[BuiltIn][set.key] = Value{Text: set.builtIn, From: BuiltIn}
		if p.Getenv == nil {
			continue
		}
		if v, ok, err := set.fromEnvironment(p.Getenv(Variable(set.key))); err != nil {
			problems = append(problems, Problem{File: "the environment", Key: Variable(set.key), Message: err.Error(), Hint: "unset " + Variable(set.key)})
		} else if ok {
			s.values[FromEnvironment][set.key] = v
		}
	}
	problems = append(problems, s.read(p)...)
	if len(problems) > 0 {
		return nil, problems
	}
	problems = append(problems, s.checkBackend()...)
	if len(problems) > 0 {
		return nil, problems
	}
	return s, nil
}

func (s setting) fromEnvironment(given string) (Value, bool, error) {
	if given == "" {
		return Value{}, false, nil
	}
	v := Value{From: FromEnvironment, Text: given}
	parts := []string{given}
	if s.kind.list() {
		parts = filepath.SplitList(given)
		v.Text, v.List = "", parts
	}
	for _, part := range parts {
		if err := s.check(part); err != nil {
			return v, false, err
		}
	}
	return v, true, nil
}

// read reads the two files.
func (s *Settings) read(p Places) (problems Problems) {
	if p.Personal != "" {
		data, err := readPersonal(p.Personal, maxFile)
		exists := err == nil
		if os.IsNotExist(err) && !p.Named {
			err = nil
		}
		s.Files = append(s.Files, File{FromPersonal, p.Personal, exists})
		problems = append(problems, s.take(FromPersonal, p.Personal, data, err)...)
	}
	if p.Top != "" {
		name := filepath.Join(p.Top, Dir, "config.toml")
		data, err := readOwn(p.Top, "config.toml", maxFile)
		exists := err == nil
		if os.IsNotExist(err) {
			err = nil
		}
		s.Files = append(s.Files, File{FromRepository, name, exists})
		problems = append(problems, s.take(FromRepository, name, data, err)...)
	}
	return problems
}

func (s *Settings) take(from Source, name string, data []byte, err error) Problems {
	if err != nil {
		return Problems{{File: name, Message: readError(err)}}
	}
	doc, problems := parse(from, name, data, s.agents)
	s.values[from] = doc.values
	if from == FromPersonal {
		s.Backends, s.AllTrees = doc.backends, doc.trees
	}
	return problems
}

// checkBackend says that the backend in use is one that is not known.
func (s *Settings) checkBackend() Problems {
	v := s.Value(Backend)
	if _, known := s.Backends[v.Text]; known || v.Text == "" {
		return nil
	}
	p := Problem{File: v.File, Line: v.Line, Key: string(Backend), Message: s.UnknownBackend(v.Text).Error()}
	if v.From == FromEnvironment {
		p.File, p.Key = "the environment", Variable(Backend)
	}
	return Problems{p}
}

// UnknownBackend is the error for a backend that is not among those of s.
func (s *Settings) UnknownBackend(name string) error {
	known := strings.Join(slices.Sorted(maps.Keys(s.Backends)), ", ")
	if known == "" {
		return fmt.Errorf("there is no backend %q: your file has no backends; add it as [backends.%s]", name, name)
	}
	return fmt.Errorf("there is no backend %q; known: %s", name, known)
}

// order is the order of the sources: the first that has a value counts.
var order = []Source{FromEnvironment, FromRepository, FromPersonal, BuiltIn}

// Value is the setting in force.
func (s *Settings) Value(key Key) Value {
	if key == Network {
		return s.Network(Default(Network))
	}
	if key == SyncExclude {
		return s.excludes()
	}
	return s.first(key, order)
}

// excludes are the patterns of all sources. Later ones count more, so the repository's come
// first: they can't take back any of the person's. The source is that of the last patterns.
func (s *Settings) excludes() Value {
	all := Value{From: BuiltIn}
	for _, from := range []Source{FromRepository, FromPersonal, FromEnvironment} {
		v, ok := s.values[from][SyncExclude]
		if !ok {
			continue
		}
		if all.From != BuiltIn {
			v.Note = fmt.Sprintf("%s combines the patterns of the repository, your own file and the environment", SyncExclude)
		}
		v.List = slices.Concat(all.List, v.List)
		all = v
	}
	return all
}

// Limits returns the name of the repository's file if that has rules for cove sync. The rules
// are then in force, and a change of the file may end them. Empty: there are no such rules.
func (s *Settings) Limits() string { return s.values[FromRepository][SyncExclude].File }

func (s *Settings) first(key Key, order []Source) Value {
	for _, from := range order {
		if v, ok := s.values[from][key]; ok {
			return v
		}
	}
	return Value{From: BuiltIn}
}

// Network is the preset in force. own is the preset that applies without any setting. A
// repository's preset must not reach further than the person's; if the person has set none,
// than own. Otherwise it is not taken, and Note says so.
func (s *Settings) Network(own string) Value {
	mine := s.first(Network, []Source{FromEnvironment, FromPersonal, BuiltIn})
	if mine.From == BuiltIn {
		mine.Text = own
	}
	theirs, ok := s.values[FromRepository][Network]
	if !ok || mine.From == FromEnvironment || theirs.Text == mine.Text {
		return mine
	}
	if reach[theirs.Text] > reach[mine.Text] {
		mine.Note = fmt.Sprintf("the repository asks for the network %q, which reaches further than %q; to allow it: --network %s", theirs.Text, mine.Text, theirs.Text)
		return mine
	}
	return theirs
}

// reach orders the presets: each reaches all that the ones before it do.
var reach = map[string]int{policy.None: 0, policy.Agent: 1, policy.Defaults: 2, policy.Open: 3}

// Expand is a folder of a list, with the home for a leading ~/.
func Expand(dir string) (string, error) {
	rest, ok := strings.CutPrefix(dir, "~/")
	if !ok {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, rest), nil
}
