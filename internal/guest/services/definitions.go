package services

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/guest/signals"
	"github.com/cove-dev/cove/internal/guest/smallfile"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/sprites"
)

// serviceName matches the names that a service may have. "signal" is not one: in a path, it is
// in the place of a name.
var serviceName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })

// definition is the stored form of a service.
type definition struct {
	sprites.Service
	Stopped bool      `json:"stopped"` // by somebody: the boot leaves it alone
	State   *struct{} `json:"state,omitempty"`
}

// definitions is the folder of the definitions.
type definitions struct {
	logger *slog.Logger
	dir    string // "" where there are no services
}

// readAll returns the definitions on the disk, by name. If a file is not a definition, or a
// service needs itself, it is skipped, and left for somebody to mend.
func (f *definitions) readAll() []definition {
	files, err := filepath.Glob(filepath.Join(f.dir, "*.json"))
	if err != nil {
		f.logger.Error("read the services", "err", err)
	}
	var all []definition
	needs := map[string][]string{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		d, err := readDefinition(file, name)
		if err != nil {
			f.logger.Error("read a service's definition", "file", file, "err", err)
			continue
		}
		all, needs[name] = append(all, d), d.Needs
	}
	return slices.DeleteFunc(all, func(d definition) bool {
		err := checkCircle(needs, d.Name)
		if err != nil {
			f.logger.Error("read a service's definition", "file", f.file(d.Name), "err", err)
		}
		return err != nil
	})
}

func readDefinition(file, name string) (definition, error) {
	var d definition
	data, err := smallfile.Read(file)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, err
	}
	d.Name = name
	return d, checkService(&d.Service)
}

func (f *definitions) file(name string) string { return filepath.Join(f.dir, name+".json") }

// save writes a definition to the disk, atomically. Only root may read the file, since
// variables may be secret.
func (f *definitions) save(def sprites.Service, stopped bool) error {
	data, err := json.MarshalIndent(definition{Service: def, Stopped: stopped}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(f.file(def.Name), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("save service %s: %w", def.Name, err)
	}
	return nil
}

// checkService checks a definition by itself, and fills in missing fields.
func checkService(def *sprites.Service) error {
	if !serviceName().MatchString(def.Name) || def.Name == "signal" {
		return wire.BadRequest("A service's name must have at most 63 letters, digits, dots, dashes and underscores, and must not be signal: %.64q is not allowed.", def.Name)
	}
	if def.Cmd == "" {
		return wire.BadRequest("cmd is missing: the program to run.")
	}
	if def.HTTPPort < 0 || def.HTTPPort > 65535 {
		return wire.BadRequest("http_port %d is not a port.", def.HTTPPort)
	}
	if err := checkAfterRestore(def.AfterRestore); err != nil {
		return err
	}
	if def.StopSignal != "" {
		if _, err := signals.Parse(def.StopSignal); err != nil {
			return wire.BadRequest("stop_signal must be a signal, such as QUIT, not %.64q.", def.StopSignal)
		}
	}
	for key, value := range def.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(value, 0) {
			return wire.BadRequest("%.64q can't be an environment variable.", key)
		}
	}
	for _, text := range append([]string{def.Cmd, def.Dir, def.User}, def.Args...) {
		if strings.ContainsRune(text, 0) {
			return wire.BadRequest("A NUL can't be part of a command.")
		}
	}
	if def.Args == nil {
		def.Args = []string{}
	}
	if def.Needs == nil {
		def.Needs = []string{}
	}
	def.State = sprites.ServiceState{}
	return nil
}

// checkAfterRestore checks what a service's definition says of copies.
func checkAfterRestore(text string) error {
	switch text {
	case "", sprites.AfterRestoreRestart, sprites.AfterRestoreNone:
		return nil
	}
	if _, err := signals.Parse(text); err != nil {
		return wire.BadRequest("after_restore must be restart, none or a signal, not %.64q.", text)
	}
	return nil
}

// checkCircle refuses a service that needs itself through others.
func checkCircle(needs map[string][]string, name string) error {
	seen := map[string]bool{}
	for _, next := range needs[name] {
		if reaches(needs, next, name, seen) {
			return wire.BadRequest("needs goes round in a circle: %.64q needs %.64q.", next, name)
		}
	}
	return nil
}

func reaches(needs map[string][]string, from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	return slices.ContainsFunc(needs[from], func(next string) bool { return reaches(needs, next, to, seen) })
}

func sameService(a, b sprites.Service) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}
