package connect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Zone is where connectors are in a sandbox: http://NAME.connect.internal/.
const Zone = "connect.internal"

// GitConfig is a configuration that makes git in a sandbox use the connectors
// that are for git. Git then rewrites the HTTPS and SSH URLs of their upstreams
// (url.BASE.insteadOf). Empty: no connector is for git.
func GitConfig(all map[string]Upstream) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name]
		u, err := ParseURL(c.URL)
		if !c.Git || err != nil {
			continue
		}
		path := strings.Trim(u.EscapedPath(), "/")
		if path != "" {
			path += "/"
		}
		fmt.Fprintf(&b, "[url \"http://%s.%s/\"]\n", name, Zone)
		for _, from := range []string{
			u.Scheme + "://" + u.Host + "/" + path,
			"ssh://git@" + u.Hostname() + "/" + path,
			"git@" + u.Hostname() + ":" + path,
		} {
			fmt.Fprintf(&b, "\tinsteadOf = %s\n", quote(from))
		}
	}
	return b.String()
}

// quote writes a value as git's configuration has it.
func quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}
