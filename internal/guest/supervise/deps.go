package supervise

import (
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed deps.sh
var depsScript string

// depPackages are the package managers' names of the programs that a preparation needs.
var depPackages = map[string]string{"git": "git", "node": "nodejs npm"}

// deps installs the programs that the preparation itself needs, if the sprite lacks them: git,
// and Node.js for an agent from npm.
func (p *preparation) deps(ctx context.Context) (stepEnd, error) {
	var missing, packages []string
	programs := []string{"git"}
	if !found(p.spec.Program) {
		programs = append(programs, p.spec.Needs...)
	}
	for _, program := range programs {
		if !found(program) {
			missing = append(missing, program)
			packages = append(packages, strings.Fields(depPackages[program])...)
		}
	}
	if len(missing) == 0 {
		return skipped("the sprite has what the preparation needs"), nil
	}
	at := *p.spec
	at.Workdir = "/" // there is no clone yet
	in := preparation{folder: p.folder, spec: &at, log: p.log}
	_, err := in.command(ctx, append([]string{"/bin/sh", "-c", depsScript, "sh"}, packages...))
	p.out = in.out
	if err != nil {
		return stepEnd{}, missingError{strings.Join(missing, " and "), err}
	}
	return stepEnd{detail: "installed " + strings.Join(packages, ", ")}, nil
}

// found reports whether a program is in a folder where agents are looked for.
func found(program string) bool {
	home, _ := os.UserHomeDir() // without one, it is not there
	for _, name := range []string{program, filepath.Join(home, ".local", "bin", program)} {
		if _, err := exec.LookPath(name); err == nil && program != "" {
			return true
		}
	}
	return false
}

// missingError says which programs a sprite lacks, and why they could not be installed.
type missingError struct {
	programs string
	err      error
}

func (e missingError) Error() string {
	return "the sprite has no " + e.programs + ", and it could not be installed (an image that has it needs no installation): " + e.err.Error()
}

func (e missingError) Unwrap() error { return e.err }
