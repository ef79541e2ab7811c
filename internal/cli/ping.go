package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// pinged is what ping found, for --json.
type pinged struct {
	URL     string     `json:"url"`
	Version string     `json:"version"`
	Steps   []pingStep `json:"steps"`
}

type pingStep struct {
	Step string  `json:"step"`
	MS   float64 `json:"ms"`
}

func (a *app) newPing() *cobra.Command {
	return &cobra.Command{
		Use:   "ping",
		Short: "Ask the server, and a sprite, whether they answer",
		Long: `Asks the server what it is, and with -s runs "true" in that sprite, which wakes it: the
first time with what that takes, and once more when it is awake. Each step's time is
printed.`,
		Example: `  cove ping
  cove ping -s paint`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error { return a.ping(ctx) }),
	}
}

func (a *app) ping(ctx context.Context) error {
	if a.global.sprite != "" {
		if err := checkName(a.global.sprite); err != nil {
			return err
		}
	}
	doc := pinged{Steps: []pingStep{}}
	step := func(name string, f func() error) error {
		began := time.Now()
		if err := f(); err != nil {
			return err
		}
		ms := float64(time.Since(began).Microseconds()) / 1000
		doc.Steps = append(doc.Steps, pingStep{name, ms})
		if !a.global.json {
			fmt.Fprintf(a.Out, "%-16s %8.1f ms\n", name, ms)
		}
		return nil
	}
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	doc.URL = c.URL
	err = step("server", func() error {
		info, err := c.Version(ctx)
		doc.Version = info.Version
		return err
	})
	if err != nil {
		return err
	}
	if a.global.sprite != "" {
		run := func() error { return spriteError(c.Sprite(a.global.sprite).CommandContext(ctx, "true").Run()) }
		for _, name := range []string{"exec true", "exec true again"} {
			if err := step(name, run); err != nil {
				return err
			}
		}
	}
	if a.global.json {
		a.printJSON(doc)
	}
	return nil
}
