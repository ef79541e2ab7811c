package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

// mcpFlags are the flags --mcp and --mcp-env, as they were given.
type mcpFlags struct{ servers, env []string }

// parseMCP reads the flags --mcp and --mcp-env. They must say on which side a server is: nobody
// should take a tool that acts outside of the sandbox for one inside.
func parseMCP(cmd *cobra.Command, given mcpFlags) ([]cove.MCPServer, error) {
	var servers []cove.MCPServer
	for _, text := range given.servers {
		side, rest, _ := strings.Cut(text, ":")
		name, list, _ := strings.Cut(rest, "=")
		switch {
		case side == "sprite" && (name == "" || list == ""):
			return nil, hinted(usagef(cmd, "--mcp %q does not say what starts the server", text), "write --mcp sprite:NAME=COMMAND")
		case side == "sprite":
			servers = append(servers, cove.MCPServer{Name: name, Command: []string{"/bin/sh", "-c", list}})
		case side != "host":
			return nil, hinted(usagef(cmd, "--mcp %q does not say whether the server is outside of the sprite", text), "write --mcp host:"+text+", or --mcp sprite:NAME=COMMAND to start one in the sprite")
		case name == "" || list == "":
			return nil, hinted(usagef(cmd, "--mcp %q does not name the tools that may be called", text), "write --mcp host:"+rest+"=TOOL,TOOL, or =* for all that it has")
		default:
			servers = append(servers, cove.MCPServer{Connector: name, Tools: strings.Split(list, ",")})
		}
	}
	for _, text := range given.env {
		name, kv, ok := strings.Cut(text, ":")
		i := slices.IndexFunc(servers, func(s cove.MCPServer) bool { return s.Name == name && name != "" })
		if key, _, is := strings.Cut(kv, "="); !ok || !is || key == "" {
			return nil, usagef(cmd, "--mcp-env: write SERVER:NAME=VALUE")
		}
		if i < 0 {
			return nil, usagef(cmd, "--mcp-env: there is no --mcp sprite:%s", name)
		}
		servers[i].Env = append(servers[i].Env, kv)
	}
	return servers, nil
}

// mcpTexts are servers as the flag has them.
func mcpTexts(servers []cove.MCPServer) []string {
	var all []string
	for _, s := range servers {
		if s.Connector == "" {
			all = append(all, "sprite:"+s.Name)
			continue
		}
		all = append(all, "host:"+s.Connector+"="+strings.Join(s.Tools, ","))
	}
	return all
}
