// Package dockerfile reads Dockerfiles as BuildKit does, with BuildKit's own parser. It returns
// the steps to do. It runs nothing and reads no other file.
//
// A Dockerfile may come from anybody. Its size, its instructions and the values of its variables
// are bounded. An instruction that a build here can't do is refused by name and line. Parse
// refuses most of them, and Steps those that depend on variables.
//
// The order of use is Parse, Stages, and Steps of each stage in the order of Stages. Nothing
// has to run in between, so a caller can have all steps, and all refusals, before it runs
// the first.
package dockerfile

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// The bounds of a Dockerfile.
const (
	MaxSize = 1 << 20 // bytes

	maxLines        = 20_000
	maxInstructions = 1000
	maxText         = 64 << 10  // bytes of one instruction, here-documents aside
	maxWord         = 256 << 10 // bytes of a word that is expanded
	maxEntries      = 1000      // variables, labels, ports, volumes, triggers
	maxPlan         = 64 << 20  // bytes of all steps: of words, and of each RUN's environment
)

// Stage is a stage that a target needs.
type Stage struct {
	Index     int    // in the Dockerfile, from 0
	Name      string // lower case; empty: it has none
	Line      int    // of its FROM
	From      string // a reference, or Scratch; empty: it is from FromStage
	FromStage int    // the Index of the stage that it starts from, or -1

	plan *plan
}

// Scratch is the From of a stage that starts from nothing.
const Scratch = "scratch"

// Step is what one instruction does. If Run, Copy and Folder are all zero, it changes only
// the configuration, or nothing (ARG).
type Step struct {
	Line    int    // of the instruction; of the FROM, if a trigger of the base (ONBUILD) has it
	Text    string // the instruction as it is in the Dockerfile
	History string // as docker history shows it
	OnBuild bool   // the base has it, as a trigger
	Author  string // the image's author from here on; empty: as before

	Config v1.Config // after the step
	Run    *Run
	Copy   *Copy
	Folder string // WORKDIR, VOLUME: make this folder, with its parents, for Config.User, if it is not there
}

// Run is a program to be run.
type Run struct {
	Argv    []string
	Env     []string // NAME=VALUE, of the image and of ARG, as BuildKit has them
	Proxy   []string // NAME=VALUE of the proxies among the build's arguments; neither in the image nor in a Key
	Dir     string   // absolute
	User    string   // as in a configuration; empty: root
	Files   []File   // to be there while it runs, read-only, and in no layer
	Mounts  []Mount
	Network string // NetworkDefault or NetworkNone
}

// The networks of a Run.
const (
	NetworkDefault = "default"
	NetworkNone    = "none"
)

// File is a file whose content is in the Dockerfile.
type File struct {
	Name string // of a Copy: one name; of a Run: an absolute path
	Data string
	Mode uint32
}

// The types of a Mount.
const (
	MountBind   = "bind"
	MountCache  = "cache"
	MountSecret = "secret"
	MountTmpfs  = "tmpfs"
)

// Mount is there while a Run runs, and in no layer.
type Mount struct {
	Type   string
	Target string // absolute; empty: a secret that is in Env only

	// A bind's source, or a cache's first content: a path in a stage, an image or the context. A
	// cache without one begins empty.
	FromStage int    // an Index, or -1
	FromImage string // a reference
	Context   bool
	Source    string

	ReadOnly bool

	ID       string // of a cache or of a secret
	Sharing  string // of a cache: shared, private or locked
	Required bool   // of a secret: without it the step fails
	Env      string // of a secret: the variable that has it

	Mode     *uint32 // of a cache or a secret; nil: 0755, or 0400
	UID, GID uint32
	Size     int64 // of a tmpfs; 0: no limit of its own
}

// Copy is a COPY or an ADD. Its files come from a stage, from an image or from the context,
// and those of Inline from the Dockerfile.
type Copy struct {
	FromStage int    // an Index, or -1
	FromImage string // a reference
	Context   bool

	Sources []string // as they are written, with variables expanded; they may have wildcards
	Inline  []File
	Dest    string // absolute, and clean
	DestDir bool   // it ends with a slash, and so is a folder

	Chown   string   // USER, USER:GROUP, by name or by number
	Chmod   string   // octal, or symbolic as of chmod(1)
	Add     bool     // archives among the sources are extracted
	Exclude []string // patterns, as in a .dockerignore file
	Parents bool     // the folders of the sources' paths are made, too
	Link    bool     // nothing of the parent image counts, its symbolic links neither
}

func bad(name string, line int, format string, args ...any) error {
	return at(name, line, fail.Newf("dockerfile_bad", "", format, args...))
}

func unsupported(name string, line int, hint, format string, args ...any) error {
	return at(name, line, fail.Newf("dockerfile_unsupported", hint, format, args...))
}
