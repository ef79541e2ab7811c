// Package checkpointtree draws the tree of checkpoints beside a list of them.
package checkpointtree

import (
	"slices"
	"strings"

	"github.com/cove-dev/cove/sprites"
)

// Draw draws which state each state of a list grew from. The list has the newest first. Draw
// returns a line for each, to be put before its name; all are empty if no state has branched.
// If a state's origin is not in the list, the nearest one before it counts.
func Draw(list []sprites.Checkpoint) []string {
	at := make(map[string]int, len(list))
	for i, c := range list {
		at[c.ID] = i
	}
	source := func(i int) string {
		for _, id := range append([]string{list[i].SourceID}, list[i].History...) {
			if from, ok := at[id]; ok && from > i {
				return id
			}
		}
		return ""
	}
	var lanes []string // the states that the lines from above lead to; empty: there is no line
	lines := make([]string, len(list))
	widest := 0
	for i, c := range list {
		here := slices.Index(lanes, c.ID)
		if here < 0 { // the end of a branch
			if here = slices.Index(lanes, ""); here < 0 {
				here = len(lanes)
				lanes = append(lanes, "")
			}
			lanes[here] = c.ID
		}
		lines[i] = drawLanes(lanes, here)
		for lane, id := range lanes {
			if id == c.ID {
				lanes[lane] = ""
			}
		}
		lanes[here] = source(i)
		widest = max(widest, len(lanes))
	}
	if widest < 2 {
		return make([]string, len(list))
	}
	for i := range lines {
		lines[i] += strings.Repeat("  ", widest-(len([]rune(lines[i]))+1)/2) + " "
	}
	return lines
}

// drawLanes draws the line of the state that the lane here leads to, which other lanes
// to the right may lead to, too.
func drawLanes(lanes []string, here int) string {
	last := here
	for lane, id := range lanes {
		if id == lanes[here] {
			last = lane
		}
	}
	var b strings.Builder
	for lane, id := range lanes {
		mark, gap := " ", " "
		if here < lane && lane < last {
			mark = "─"
		}
		if here <= lane && lane < last {
			gap = "─"
		}
		switch {
		case lane == here:
			mark = "*"
		case id == lanes[here] && lane == last:
			mark = "┘"
		case id == lanes[here]:
			mark = "┴"
		case id != "" && mark == "─":
			mark = "┼"
		case id != "":
			mark = "│"
		}
		b.WriteString(mark)
		if lane < len(lanes)-1 {
			b.WriteString(gap)
		}
	}
	return b.String()
}
