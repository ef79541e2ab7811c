package cli

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

func newProfileKeysCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "keys",
		Short: "List all keys of a profile, as TOML with comments",
		Long: `Lists all keys that a profile can have, as TOML with an example of each and a comment. A
profile has as few of them as you like, and not all go together.`,
		Example: `  cove profile keys
  cove profile keys | grep -A 5 guards`,
		Args: exactArgs(),
		RunE: verb(func(context.Context, []string) error {
			return inv.show(map[string]string{"toml": profileKeys()}, func(w io.Writer) { fmt.Fprint(w, profileKeys()) })
		}),
	}
}

// profileKey says of a key of a profile how it is written, and what it does. The example is a
// value of TOML; of a map, it is lines.
type profileKey struct{ example, about string }

// notProfileKeys are fields that a server fills in.
var notProfileKeys = map[string]bool{"setup_script.repository": true, "cleanup_script.repository": true}

// aboutProfile has all keys of cove.ProfileSettings by their paths.
var aboutProfile = map[string]profileKey{
	"description":   {`"Repairs what the nightly tests find"`, "a line, for cove profile list"},
	"url":           {`"https://git.example.org/team/project"`, "the repository that jobs clone, if they are sent none"},
	"branch":        {`"main"`, "of url; without it, its default branch"},
	"publish":       {`"branch"`, "of url: pushes the commits as a branch; pull_request: opens one"},
	"backend":       {`"far"`, "where the sprites are (cove backend list); without it, on this server"},
	"agent":         {`"claude"`, "see cove agent list; without it, each push names one"},
	"agent_command": {`"opencode acp"`, "starts the agent acp"},
	"permissions":   {`"allow"`, "answers the agent acp: allow, ask or deny"},
	"model":         {`"anthropic/MODEL"`, "PROVIDER/MODEL; without it, the agent's choice"},
	"login":         {`"key"`, "how the agent asks its model: key, outside or inside"},

	"timeout_seconds":  {"7200", "ends the agent after that running time"},
	"include":          {`["/opt/tools"]`, "folders of the server's machine, to read"},
	"max_jobs":         {"10", "jobs that work at once; 0: any number"},
	"max_wait_seconds": {"3600", "stops a job that waits for a person while others wait for their turn"},

	"guards":              {"", "end the agent"},
	"guards.idle_seconds": {"600", "after that time without an event"},
	"guards.turns":        {"200", "after that many turns of its model"},
	"guards.disk_bytes":   {"5368709120", "if its files grow by more"},
	"guards.cost_usd":     {"2.5", "if its model costs more (the agent cove only)"},

	"step_limits": {"", "seconds that steps of the preparation may take; these are usual"},

	"agent_definition":      {"", "an agent of your own; cove profile put fills it in"},
	"agent_definition.file": {`"greeter.toml"`, "for people"},
	"agent_definition.text": {`"name = \"greeter\""`, "the definition (cove help agent add)"},

	"mcp":           {"", "a server of tools for the agent: a connector with tools, or a name with a command"},
	"mcp.connector": {`"linear"`, "a server outside of the sprite, which the agent cove asks"},
	"mcp.tools":     {`["*"]`, "of the connector; *: all"},
	"mcp.name":      {`"db"`, "of a server that the agent starts in the sprite"},
	"mcp.command":   {`["npx", "db-mcp"]`, "its program and arguments"},
	"mcp.env":       {`["TOKEN={secret:db}"]`, "its variables"},

	"network_policy":                {"", "of new sprites; without it, what a push asks for, or the preset agent"},
	"network_policy.rules":          {"", "each is an include, or a domain or cidr with an action (cove help policy)"},
	"network_policy.rules.domain":   {`"registry.example.org"`, "or *.example.org, or *"},
	"network_policy.rules.cidr":     {`"10.1.0.0/16"`, "an address, or a prefix"},
	"network_policy.rules.include":  {`"agent"`, "a preset: open, none, agent or defaults"},
	"network_policy.rules.action":   {`"allow"`, "or deny"},
	"network_policy.rules.ports":    {`["443", "8000-8999"]`, "without it, every port"},
	"network_policy.rules.protocol": {`"tcp"`, "or udp"},

	"network_policy.limits":                        {"", "of the connections that a sprite opens"},
	"network_policy.limits.bytes_per_second":       {"1000000", "each way"},
	"network_policy.limits.connections_per_second": {"50", ""},

	"config":            {"", "of new sprites; what is left out, a push may ask for"},
	"config.ram_mb":     {"4096", "memory, in MiB"},
	"config.cpus":       {"2", ""},
	"config.region":     {`"ams"`, "of a backend that has regions"},
	"config.storage_gb": {"20", "disk, in GiB"},
	"config.storage_mb": {"20480", "disk, in MiB, in place of storage_gb"},
	"config.image":      {`"debian:12"`, "host: the tools of the server's machine"},

	"setup_script":                   {"", "prepares the sprite, in the clone; in place of the repository's own"},
	"setup_script.name":              {`"setup"`, "for people; setup_script if it is left out"},
	"setup_script.text":              {`"make deps"`, "for sh, or begins with #!"},
	"setup_script.timeout_seconds":   {"1800", "without it, ten minutes"},
	"cleanup_script":                 {"", "runs before the sprite of a job is deleted"},
	"cleanup_script.name":            {`"cleanup"`, "for people; cleanup_script if it is left out"},
	"cleanup_script.text":            {`"make logout"`, "for sh, or begins with #!"},
	"cleanup_script.timeout_seconds": {"30", "without it, a minute; ten at most"},

	"env": {"CI = \"1\"\nKEY = \"{secret:NAME}\"\n", "variables of the agent; a value may refer to a secret"},

	"author":       {"", "of the commits; without it, whoever pushes"},
	"author.name":  {`"Robot"`, ""},
	"author.email": {`"robot@example.org"`, ""},
}

// profileKeys are all keys of a profile as TOML, in the order of the type.
func profileKeys() string {
	var b strings.Builder
	b.WriteString("# All keys of a profile. Each may be left out, and not all go together.\n\n")
	writeKeys(&b, "", reflect.TypeFor[cove.ProfileSettings]())
	return b.String()
}

// writeKeys writes the keys of a struct: those with plain values first, as TOML wants it.
func writeKeys(b *strings.Builder, prefix string, t reflect.Type) {
	for _, tables := range []bool{false, true} {
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			path := prefix + name
			of, many := elementOf(f.Type)
			isTable := of.Kind() == reflect.Struct || of.Kind() == reflect.Map
			if name == "-" || name == "" || isTable != tables || notProfileKeys[path] {
				continue
			}
			key := aboutProfile[path]
			comment := ""
			if key.about != "" {
				comment = "  # " + key.about
			}
			if !isTable {
				fmt.Fprintf(b, "%s = %s%s\n", name, key.example, comment)
				continue
			}
			head := "[" + path + "]"
			if many {
				head = "[" + head + "]"
			}
			fmt.Fprintf(b, "\n%s%s\n", head, comment)
			switch {
			case path == "step_limits":
				for _, step := range cove.StepKeys() {
					if usual := cove.StepLimit(nil, step); usual > 0 {
						b.WriteString(string(step) + " = " + strconv.FormatInt(int64(usual/time.Second), 10) + "\n")
					}
				}
			case of.Kind() == reflect.Map:
				b.WriteString(key.example)
			default:
				writeKeys(b, path+".", of)
			}
		}
	}
}

// elementOf is the type that t is or points to. For a list of structs, it is the type of the
// elements, and many is true.
func elementOf(t reflect.Type) (of reflect.Type, many bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		return t.Elem(), true
	}
	return t, false
}
