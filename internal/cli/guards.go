package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// guardFlags are the flags of push that end an agent which goes astray.
type guardFlags struct {
	idle  time.Duration
	turns int64
	disk  string
	usd   float64
}

func (g *guardFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&g.idle, "max-idle", 0, "stop the job if the agent says nothing for so long (0: never)")
	f.Int64Var(&g.turns, "max-turns", 0, "stop the job after so many turns of the agent's model; with the agent shell, steps of the plan (0: any number; refused for an agent that does not report them)")
	f.Float64Var(&g.usd, "max-cost", 0, "stop the job when its model has cost so many dollars, at the prices of its connector (0: any sum; for the agent cove alone)")
	f.StringVar(&g.disk, "max-disk", "", "stop the job when the files in the home, /tmp and /var/tmp have grown by so much, such as 5G")
}

func (g *guardFlags) guards(cmd *cobra.Command) (cove.Guards, error) {
	guards := cove.Guards{IdleSec: int64((g.idle + time.Second - 1) / time.Second), Turns: g.turns, CostUSD: g.usd}
	if g.idle < 0 {
		return guards, usagef(cmd, "--max-idle %v is negative", g.idle)
	}
	if g.turns < 0 {
		return guards, usagef(cmd, "--max-turns %d is negative", g.turns)
	}
	if !(g.usd >= 0) {
		return guards, usagef(cmd, "--max-cost %g: must be 0 or more", g.usd)
	}
	if g.disk != "" {
		n, err := ParseSize(g.disk)
		if err != nil || n < 1<<20 {
			return guards, usagef(cmd, "--max-disk %q is not a size such as 5G or 512M", g.disk)
		}
		guards.DiskBytes = n
	}
	return guards, nil
}

// guardsText says what ends a job early.
func guardsText(j cove.Job) string {
	var all []string
	if j.TimeoutSec > 0 {
		all = append(all, fmt.Sprintf("%v of running time", time.Duration(j.TimeoutSec)*time.Second))
	}
	if g := j.Guards; g.IdleSec > 0 {
		all = append(all, fmt.Sprintf("%v without an event", time.Duration(g.IdleSec)*time.Second))
	}
	if g := j.Guards; g.Turns > 0 {
		all = append(all, printable.Count(int(g.Turns), "turn"))
	}
	if g := j.Guards; g.DiskBytes > 0 {
		all = append(all, printable.Bytes(g.DiskBytes)+" of files")
	}
	if g := j.Guards; g.CostUSD > 0 {
		all = append(all, fmt.Sprintf("$%.2f for its model", g.CostUSD))
	}
	return strings.Join(all, ", ")
}
