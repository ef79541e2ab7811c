package cli

import (
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/sprites"
)

// versions are what this program is made of.
type versions struct {
	Cove     string `json:"cove"`
	Commit   string `json:"commit,omitempty"`
	Protocol string `json:"protocol"`
	Runsc    string `json:"runsc,omitempty"`
	Go       string `json:"go,omitempty"`
}

// Version is the version of this program, which its server tells too.
func Version() string { return readVersions().Cove }

func readVersions() versions {
	v := versions{Cove: "unknown", Protocol: sprites.Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Cove, v.Go = info.Main.Version, info.GoVersion
	if v.Cove == "" {
		v.Cove = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	for _, dep := range info.Deps {
		if dep.Path == "gvisor.dev/gvisor" {
			v.Runsc = dep.Version
			if dep.Replace != nil {
				v.Runsc = dep.Replace.Version
			}
		}
	}
	return v
}

func newVersionCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of cove, its protocol and gVisor",
		Long: `Prints the versions of cove, of the protocol that it speaks, and of the gVisor in it. It asks no
server.`,
		Example: `  cove version
  cove version --json`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			v := readVersions()
			return inv.show(v, func(w io.Writer) {
				fmt.Fprintf(w, "cove %s\n", v.Cove)
				fields(w, "commit", v.Commit, "protocol", v.Protocol, "gVisor", v.Runsc, "go", v.Go)
			})
		},
	}
}
