package job

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// Bounds on the MCP servers of a job.
const (
	maxServers     = 20
	maxServerTools = 100
)

// mcpTool matches the names that a tool of an MCP server may have by the protocol, and *.
var mcpTool = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([A-Za-z0-9_.-]{1,64}|\*)$`) })

// checkStarted refuses MCP servers that the agent could not start in the sprite. It repeats no
// value of a variable.
func checkStarted(req cove.JobRequest, agent agents.Agent) error {
	var names []string
	for _, s := range req.MCP {
		inside := s.Name != "" || len(s.Command) > 0 || len(s.Env) > 0
		switch _, ok := agent.(agents.MCPStarter); {
		case s.Connector != "" && inside:
			return fail.Newf("bad_request", "give one of them", "the MCP server %s is both a connector and a command", s.Connector)
		case s.Connector != "":
			continue
		case !ok:
			return fail.Newf("bad_request", "leave out --mcp, or use --agent claude, codex, opencode, acp or cove", "the agent %s can't be given MCP servers", req.Agent)
		case !serverName().MatchString(s.Name):
			return fail.Newf("bad_request", "", "%.60q can't be the name of an MCP server: a name has lower-case letters, digits and hyphens, at most 30", s.Name)
		case slices.Contains(names, s.Name):
			return fail.Newf("bad_request", "", "there are two MCP servers named %s", s.Name)
		case len(s.Command) == 0 || s.Command[0] == "" || len(s.Command) > maxWords || len(s.Env) > maxWords || len(s.Tools) > 0:
			return fail.Newf("bad_request", "write --mcp sprite:"+s.Name+"=COMMAND", "the MCP server %s must be a command and its variables, at most %d of each, without a list of tools", s.Name, maxWords)
		}
		names = append(names, s.Name)
		for _, kv := range s.Env {
			if name, _, _ := strings.Cut(kv, "="); !shellName().MatchString(name) {
				return fail.Newf("bad_request", "", "the MCP server %s has a variable that can't be one: a name has letters, digits and _", s.Name)
			}
		}
		for _, text := range slices.Concat(s.Command, s.Env) {
			if strings.ContainsRune(text, 0) {
				return fail.Newf("bad_request", "", "the MCP server %s has a NUL in its command or a variable", s.Name)
			}
		}
	}
	return nil
}

// maxWords bounds the arguments of a server's command, and its variables.
const maxWords = 64

var (
	serverName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?$`) })
	shellName  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`) })
)

// shownServers are MCP servers without the values of variables.
func shownServers(servers []cove.MCPServer) []cove.MCPServer {
	shown := slices.Clone(servers)
	for i, s := range shown {
		shown[i].Env = nil
		for _, kv := range s.Env {
			name, _, _ := strings.Cut(kv, "=")
			shown[i].Env = append(shown[i].Env, name)
		}
	}
	return shown
}

// checkMCP refuses MCP servers that the agent could not be given. A server outside the sprite
// is a connector of this server's; the request says which of its tools may be called.
func (in *intake) checkMCP(ctx context.Context, req cove.JobRequest, agent agents.Agent) error {
	if len(req.MCP) == 0 {
		return nil
	}
	if len(req.MCP) > maxServers {
		return fail.Newf("bad_request", "", "a job has %d MCP servers at most", maxServers)
	}
	if err := checkStarted(req, agent); err != nil {
		return err
	}
	if !slices.ContainsFunc(req.MCP, func(s cove.MCPServer) bool { return s.Connector != "" }) {
		return nil
	}
	if _, ok := agent.(agents.MCPClient); !ok {
		return fail.Newf("bad_request", "leave out --mcp, or use --agent cove", "the agent %s can't be given MCP servers of the host", req.Agent)
	}
	if req.Backend != "" {
		return fail.Newf("bad_request", "leave out --mcp", "connectors, which lead to MCP servers of the host, are not available at the backend %s", req.Backend)
	}
	var names []string
	for _, s := range req.MCP {
		if s.Connector == "" {
			continue
		}
		if err := connect.CheckName(s.Connector); err != nil {
			return fail.Newf("bad_request", "", "%v", err)
		}
		if slices.Contains(names, s.Connector) {
			return fail.Newf("bad_request", "name all of its tools at once", "the MCP server %s is given twice", s.Connector)
		}
		names = append(names, s.Connector)
		all := slices.Contains(s.Tools, "*")
		if len(s.Tools) == 0 || len(s.Tools) > maxServerTools || all && len(s.Tools) > 1 {
			return fail.Newf("bad_request", "write --mcp host:"+s.Connector+"=TOOL,TOOL", "the tools of %s that may be called must be named, at most %d of them, or * alone", s.Connector, maxServerTools)
		}
		for _, tool := range s.Tools {
			if !mcpTool().MatchString(tool) {
				return fail.Newf("bad_request", "", "a tool can't be called %.80q", tool)
			}
		}
		if _, err := in.connectors.store.Get(ctx, s.Connector); errors.Is(err, store.ErrNotFound) {
			return fail.Newf("no_connector", "make it: cove connector put "+s.Connector+" --upstream URL", "there is no connector %s", s.Connector)
		} else if err != nil {
			return err
		}
	}
	return nil
}
