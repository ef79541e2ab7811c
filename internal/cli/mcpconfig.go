package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/internal/server/mcpserver"
)

// mcpClient is how one client's settings have an MCP server.
type mcpClient struct {
	file  string // where they are
	stdio func(name string, command []string) any
	http  func(name, url string) any
	toml  bool
}

type object = map[string]any

// servers is the shape that most clients have.
func servers(key, name string, entry object) any { return object{key: object{name: entry}} }

// bearer is the header with the token in a variable, as a client writes one.
func bearer(variable string) object { return object{"Authorization": "Bearer " + variable} }

// mcpClients are the clients whose settings are known. No settings hold a token: each client
// takes it from the environment.
var mcpClients = map[string]mcpClient{
	"claude": {
		file: ".mcp.json",
		stdio: func(name string, command []string) any {
			return servers("mcpServers", name, object{"type": "stdio", "command": command[0], "args": command[1:]})
		},
		http: func(name, url string) any {
			return servers("mcpServers", name, object{"type": "http", "url": url, "headers": bearer("${COVE_TOKEN}")})
		},
	},
	"cursor": {
		file: ".cursor/mcp.json",
		stdio: func(name string, command []string) any {
			return servers("mcpServers", name, object{"command": command[0], "args": command[1:]})
		},
		http: func(name, url string) any {
			return servers("mcpServers", name, object{"url": url, "headers": bearer("${env:COVE_TOKEN}")})
		},
	},
	"vscode": {
		file: ".vscode/mcp.json",
		stdio: func(name string, command []string) any {
			return servers("servers", name, object{"type": "stdio", "command": command[0], "args": command[1:]})
		},
		http: func(name, url string) any {
			return servers("servers", name, object{"type": "http", "url": url, "headers": bearer("${env:COVE_TOKEN}")})
		},
	},
	"gemini": {
		file: ".gemini/settings.json",
		stdio: func(name string, command []string) any {
			return servers("mcpServers", name, object{"command": command[0], "args": command[1:]})
		},
		http: func(name, url string) any {
			return servers("mcpServers", name, object{"httpUrl": url, "headers": bearer("$COVE_TOKEN")})
		},
	},
	"opencode": {
		file: "opencode.json",
		stdio: func(name string, command []string) any {
			return servers("mcp", name, object{"type": "local", "command": command, "enabled": true})
		},
		http: func(name, url string) any {
			return servers("mcp", name, object{"type": "remote", "url": url, "headers": bearer("{env:COVE_TOKEN}"), "enabled": true})
		},
	},
	"codex": {
		file: "~/.codex/config.toml",
		toml: true,
		stdio: func(name string, command []string) any {
			return servers("mcp_servers", name, object{"command": command[0], "args": command[1:]})
		},
		http: func(name, url string) any {
			return servers("mcp_servers", name, object{"url": url, "bearer_token_env_var": "COVE_TOKEN"})
		},
	},
}

func mcpClientNames() []string { return slices.Sorted(maps.Keys(mcpClients)) }

func newMCPConfigCommand(inv *invocation) *cobra.Command {
	var o mcpOptions
	var client, name string
	var overHTTP bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the settings for a client of cove mcp",
		Long: `Prints the settings with which an MCP client uses a sprite. Paste them into the file that
standard error names. The client then starts cove mcp.

With --http, the client calls the server itself, with the token in the variable COVE_TOKEN of its
environment. Give it a token that reaches no more than it should.`,
		Example: `  cove mcp config -s paint >.mcp.json
  cove mcp config -s paint --client codex --role edit
  cove mcp config --prefix agent- --http --client cursor
  export COVE_TOKEN=$(cove token create claude --prefix agent-)`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		as, ok := mcpClients[client]
		if !ok {
			return usagef(cmd, "--client %q is not one of %s", client, strings.Join(mcpClientNames(), ", "))
		}
		if strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(nameRunes, r) }) || name == "" {
			return usagef(cmd, "--name %q: use letters, digits, hyphens and underscores", name)
		}
		within, err := mcpBound(inv, cmd, o)
		if err != nil {
			return err
		}
		var config any
		if overHTTP {
			at, err := mcpURL(ctx, inv, within, o)
			if err != nil {
				return err
			}
			config = as.http(name, at)
		} else {
			command, err := mcpCommand(inv, within, o)
			if err != nil {
				return err
			}
			config = as.stdio(name, command)
		}
		return printMCPConfig(inv, client, as, config, overHTTP)
	})
	o.register(cmd)
	f := cmd.Flags()
	f.StringVar(&client, "client", "claude", "whose settings: "+strings.Join(mcpClientNames(), ", "))
	must(cmd.RegisterFlagCompletionFunc("client", cobra.FixedCompletions(mcpClientNames(), cobra.ShellCompDirectiveNoFileComp)))
	f.StringVar(&name, "name", "cove", "the client's name for it")
	f.BoolVar(&overHTTP, "http", false, "let it call the server's /mcp, instead of starting cove mcp")
	return cmd
}

const nameRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// mcpCommand is the command that starts cove mcp with this run's settings: a client may run it
// in any folder.
func mcpCommand(inv *invocation, within mcpserver.Bound, o mcpOptions) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := []string{self, "mcp"}
	add := func(flag, value string) {
		if value != "" {
			command = append(command, flag, value)
		}
	}
	add("-s", within.Sprite)
	add("--prefix", within.Prefix)
	add("--dir", o.dir)
	if !slices.Equal(o.roles, []string{tools.Full}) {
		for _, role := range o.roles {
			add("--role", role)
		}
	}
	add("--url", cmp.Or(inv.global.url, os.Getenv("COVE_URL")))
	add("--backend", cmp.Or(inv.global.backend, os.Getenv("COVE_BACKEND")))
	data := cmp.Or(inv.global.data, os.Getenv("COVE_DATA"))
	if data != "" {
		data, err = filepath.Abs(data)
	}
	add("--data", data)
	return command, err
}

// mcpURL is where the server offers the same.
func mcpURL(ctx context.Context, inv *invocation, within mcpserver.Bound, o mcpOptions) (string, error) {
	c, err := inv.server.client(ctx)
	if err != nil {
		return "", err
	}
	query := url.Values{}
	add := func(key string, values ...string) {
		for _, value := range values {
			if value != "" {
				query.Add(key, value)
			}
		}
	}
	add("sprite", within.Sprite)
	add("prefix", within.Prefix)
	add("dir", o.dir)
	if !slices.Equal(o.roles, []string{tools.Full}) {
		add("role", o.roles...)
	}
	return strings.TrimRight(c.URL, "/") + "/mcp?" + query.Encode(), nil
}

func printMCPConfig(inv *invocation, client string, as mcpClient, config any, overHTTP bool) error {
	var b bytes.Buffer
	asJSON := json.NewEncoder(&b)
	asJSON.SetEscapeHTML(false) // the & of a URL is for people to read
	asJSON.SetIndent("", "  ")
	encode := asJSON.Encode
	if as.toml {
		encode = toml.NewEncoder(&b).Encode
	}
	if err := encode(config); err != nil {
		return err
	}
	if !inv.global.quiet {
		inv.say("This belongs in %s.", as.file)
		if overHTTP {
			inv.say("It takes the token from COVE_TOKEN; make one with: cove token create NAME --all, or with --prefix or -s in place of --all")
		}
	}
	return inv.show(struct {
		Client string `json:"client"`
		File   string `json:"file"`
		Text   string `json:"text"`
	}{client, as.file, b.String()}, func(w io.Writer) { _, _ = b.WriteTo(w) })
}
