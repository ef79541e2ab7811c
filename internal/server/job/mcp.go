package job

import (
	"context"
	"errors"
	"regexp"
	"slices"
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

// mcpTool is what a tool of an MCP server may be called; the protocol has no more.
var mcpTool = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([A-Za-z0-9_.-]{1,64}|\*)$`) })

// checkMCP refuses MCP servers that the agent could not be given: each is a connector
// of this server's, and says which of its tools may be called.
func (in *intake) checkMCP(ctx context.Context, req cove.JobRequest, agent agents.Agent) error {
	if len(req.MCP) == 0 {
		return nil
	}
	if _, ok := agent.(agents.MCPClient); !ok {
		return fail.Newf("bad_request", "leave out --mcp, or use --agent cove", "the agent %s is given no MCP servers of the host", req.Agent)
	}
	if req.Backend != "" {
		return fail.Newf("bad_request", "leave out --mcp", "connectors, by which MCP servers of the host are reached, are not at the backend %s", req.Backend)
	}
	if len(req.MCP) > maxServers {
		return fail.Newf("bad_request", "", "a job has %d MCP servers at most", maxServers)
	}
	var names []string
	for _, s := range req.MCP {
		if err := connect.CheckName(s.Connector); err != nil {
			return fail.Newf("bad_request", "", "%v", err)
		}
		if slices.Contains(names, s.Connector) {
			return fail.Newf("bad_request", "name all of its tools at once", "the MCP server %s is there twice", s.Connector)
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
