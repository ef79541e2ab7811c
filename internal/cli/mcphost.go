package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

// parseMCP reads the flag --mcp. Where a server is must be said: a tool that acts on
// this side of the sandbox is not to be taken for one inside.
func parseMCP(cmd *cobra.Command, all []string) ([]cove.MCPServer, error) {
	var servers []cove.MCPServer
	for _, text := range all {
		rest, ok := strings.CutPrefix(text, "host:")
		if !ok {
			return nil, hinted(usagef(cmd, "--mcp %q does not say that the server is outside of the sprite", text), "write --mcp host:"+strings.TrimPrefix(text, "sprite:"))
		}
		name, list, _ := strings.Cut(rest, "=")
		if name == "" || list == "" {
			return nil, hinted(usagef(cmd, "--mcp %q does not name the tools that may be called", text), "write --mcp host:"+rest+"=TOOL,TOOL, or =* for all that it has")
		}
		servers = append(servers, cove.MCPServer{Connector: name, Tools: strings.Split(list, ",")})
	}
	return servers, nil
}

// mcpTexts are servers as the flag has them.
func mcpTexts(servers []cove.MCPServer) []string {
	var all []string
	for _, s := range servers {
		all = append(all, "host:"+s.Connector+"="+strings.Join(s.Tools, ","))
	}
	return all
}
