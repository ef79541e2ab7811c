package agents

import (
	"encoding/json"
	"path"
	"strings"

	"github.com/cove-dev/cove"
)

// StartsMCP and the following say that an agent is an MCPStarter.
func (Claude) StartsMCP() {}

// StartsMCP implements MCPStarter.
func (Codex) StartsMCP() {}

// StartsMCP implements MCPStarter.
func (OpenCode) StartsMCP() {}

// StartsMCP implements MCPStarter.
func (Cove) StartsMCP() {}

// StartsMCP implements MCPStarter.
func (ACP) StartsMCP() {}

// A startedServer is an MCP server that an agent starts in the sprite. The agent runs program
// without arguments or variables: program has them.
type startedServer struct{ name, program string }

// startServers puts into the task's folder a program for each server that is started in the
// sprite. The programs have the variables' values, so they are the user's alone.
func (t Task) startServers(w *Work) []startedServer {
	var all []startedServer
	for _, s := range t.MCP {
		if len(s.Command) == 0 {
			continue
		}
		var b strings.Builder
		b.WriteString("#!/bin/sh\n")
		for _, kv := range s.Env {
			name, value, _ := strings.Cut(kv, "=")
			b.WriteString("export " + name + "=" + quoted(value) + "\n")
		}
		b.WriteString("exec")
		for _, arg := range s.Command {
			b.WriteString(" " + quoted(arg))
		}
		b.WriteString("\n")
		file := "mcp/" + s.Name
		w.Files[file] = File{[]byte(b.String()), 0o700}
		all = append(all, startedServer{s.Name, path.Join(t.Dir, file)})
	}
	return all
}

// quoted is a word for sh.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// mcpServersFile is a configuration in the form that most clients read.
func mcpServersFile(servers []startedServer) (File, error) {
	type entry struct {
		Type    string   `json:"type"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	all := map[string]entry{}
	for _, s := range servers {
		all[s.name] = entry{"stdio", s.program, []string{}}
	}
	text, err := json.Marshal(map[string]any{"mcpServers": all})
	return File{text, 0o644}, err
}

// outside are the servers that are reached through connectors.
func outside(servers []cove.MCPServer) []cove.MCPServer {
	var all []cove.MCPServer
	for _, s := range servers {
		if s.Connector != "" {
			all = append(all, s)
		}
	}
	return all
}
