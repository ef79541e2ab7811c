package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/server/agents"
)

// An AgentFile is the definition of an agent, of the person's or of the repository's.
type AgentFile struct {
	Name   string
	File   string
	Source Source // FromPersonal or FromRepository

	// Agent is what it defines; nil: it is wrong, as Err says.
	Agent *agents.Custom
	Err   error

	// Trusted: the person has put it among their own, or has said that this text of
	// the repository's may be used.
	Trusted bool
	Hidden  bool // another definition of the same name is used instead
}

// maxAgentFiles is more than anybody has.
const maxAgentFiles = 200

// trustedFile has, below the person's folder of agents, the digests of the texts that
// repositories may define agents by.
const trustedFile = "trusted"

// AgentsDir is the person's folder of definitions; empty: there is none.
func (p Places) AgentsDir() string {
	if p.Personal == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(p.Personal), "agents")
}

// AgentFiles are the definitions of the person and of the repository, by name. If both
// have one of a name, the person's is first, and is used.
func (p Places) AgentFiles() ([]AgentFile, error) {
	var all []AgentFile
	if dir := p.AgentsDir(); dir != "" {
		names, err := definitionsIn(os.DirFS(dir))
		if err != nil {
			return nil, fmt.Errorf("the folder of your agents: %w", err)
		}
		for _, name := range names {
			file := filepath.Join(dir, name+".toml")
			text, err := readPersonal(file, agents.MaxDefinition)
			all = append(all, agentFile(FromPersonal, file, name, text, err))
		}
	}
	if p.Top != "" {
		theirs, err := p.repositoryAgents()
		if err != nil {
			return nil, err
		}
		all = append(all, theirs...)
	}
	slices.SortStableFunc(all, func(a, b AgentFile) int { return strings.Compare(a.Name, b.Name) })
	for i := range all {
		all[i].Hidden = i > 0 && all[i-1].Name == all[i].Name
	}
	return all, nil
}

// repositoryAgents are the definitions of the repository. A link out of its .cove is
// not followed.
func (p Places) repositoryAgents() ([]AgentFile, error) {
	root, err := os.OpenRoot(p.Top)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	sub, err := fs.Sub(root.FS(), Dir+"/agents")
	if err != nil {
		return nil, err
	}
	names, err := definitionsIn(sub)
	if err != nil {
		return nil, Problems{{File: filepath.Join(p.Top, Dir, "agents"), Message: readError(err)}}
	}
	trusted, err := p.trusted()
	if err != nil {
		return nil, err
	}
	var all []AgentFile
	for _, name := range names {
		text, err := readOwn(p.Top, "agents/"+name+".toml", agents.MaxDefinition)
		f := agentFile(FromRepository, filepath.Join(p.Top, Dir, "agents", name+".toml"), name, text, err)
		f.Trusted = err == nil && trusted[digest(text)]
		all = append(all, f)
	}
	return all, nil
}

// definitionsIn are the names of the definitions in a folder, which may be missing.
func definitionsIn(dir fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(dir, ".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries[:min(len(entries), maxAgentFiles)] {
		if name, ok := strings.CutSuffix(e.Name(), ".toml"); ok && agents.AgentName().MatchString(name) {
			names = append(names, name)
		}
	}
	return names, err
}

func agentFile(from Source, file, name string, text []byte, err error) AgentFile {
	f := AgentFile{Name: name, File: file, Source: from, Trusted: from == FromPersonal}
	if err != nil {
		f.Err = Problems{{File: file, Message: readError(err)}}
		return f
	}
	f.Agent, f.Err = parseAgent(file, name, text)
	return f
}

// parseAgent reads a definition whose file has the agent's name.
func parseAgent(file, name string, text []byte) (*agents.Custom, error) {
	agent, err := agents.ParseDefinition(file, string(text))
	if err != nil {
		return nil, err
	}
	if agent.Name() != name {
		return nil, Problems{{File: file, Key: "name", Message: fmt.Sprintf("it defines the agent %s, but is called %s.toml", agent.Name(), name), Hint: "give both the same name"}}
	}
	return agent, nil
}

// ErrUntrusted is why a repository's agent is not used.
var ErrUntrusted = errors.New("a repository defines it, and you have not trusted it")

// Agent is the agent of that name: one of cove's own, of the person's, or of the
// repository's, if the person trusts its text (else ErrUntrusted).
func (p Places) Agent(name string) (agents.Agent, error) {
	own, err := agents.Find(name)
	if err == nil {
		return own, nil
	}
	files, listErr := p.AgentFiles()
	if listErr != nil {
		return nil, listErr
	}
	var names []string
	for _, f := range files {
		switch {
		case f.Name != name:
			if !f.Hidden {
				names = append(names, f.Name)
			}
		case f.Err != nil:
			return nil, f.Err
		case !f.Trusted:
			return nil, fmt.Errorf("the agent %s: %w", name, ErrUntrusted)
		default:
			return f.Agent, nil
		}
	}
	if len(names) > 0 {
		err = fmt.Errorf("%w, %s", err, strings.Join(names, ", "))
	}
	return nil, err
}

// agentNames are those that a setting may name besides cove's own.
func (p Places) agentNames() []string {
	files, _ := p.AgentFiles() // whoever uses the agent hears of it
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	return names
}

// AddAgent puts a definition among the person's, in place of one of the same name, and
// returns its file. A definition with a mistake changes nothing.
func (p Places) AddAgent(from string) (*agents.Custom, string, error) {
	dir := p.AgentsDir()
	if dir == "" {
		return nil, "", errors.New("there is no home folder for agents")
	}
	text, err := readPersonal(from, agents.MaxDefinition)
	if err != nil {
		return nil, "", Problems{{File: from, Message: readError(err)}}
	}
	agent, err := agents.ParseDefinition(from, string(text))
	if err != nil {
		return nil, "", err
	}
	file := filepath.Join(dir, agent.Name()+".toml")
	return agent, file, replaceFile(file, text)
}

// RemoveAgent removes the person's definition of an agent; fs.ErrNotExist: there is
// none.
func (p Places) RemoveAgent(name string) error {
	return os.Remove(filepath.Join(p.AgentsDir(), name+".toml"))
}

// TrustAgent notes that a definition of the repository's may be used as it is now. If no
// is set, it notes that the definition may not be used any more.
func (p Places) TrustAgent(f AgentFile, no bool) error {
	trusted, err := p.trusted()
	if err != nil {
		return err
	}
	text, err := readOwn(p.Top, "agents/"+f.Name+".toml", agents.MaxDefinition)
	if err != nil {
		return err
	}
	if f.Agent == nil || f.Agent.Definition().Text != string(text) {
		return fmt.Errorf("%s has changed meanwhile", f.File)
	}
	if trusted[digest(text)] = true; no {
		delete(trusted, digest(text))
	}
	var all bytes.Buffer
	all.WriteString("# Digests of the definitions of agents that repositories may use: cove agent trust NAME\n")
	for _, sum := range slices.Sorted(maps.Keys(trusted)) {
		all.WriteString(sum + "\n")
	}
	return replaceFile(filepath.Join(p.AgentsDir(), trustedFile), all.Bytes())
}

// trusted are the digests of the texts that the person trusts.
func (p Places) trusted() (map[string]bool, error) {
	set := map[string]bool{}
	dir := p.AgentsDir()
	if dir == "" {
		return set, nil
	}
	text, err := readPersonal(filepath.Join(dir, trustedFile), maxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			set[line] = true
		}
	}
	return set, nil
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// replaceFile writes a file of the person's, by a rename.
func replaceFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(name, data, 0o600)
}
