package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
)

// usagePoint is what a job's agent had used at a time.
type usagePoint struct {
	At     time.Time
	Cost   float64
	Tokens int64
}

// maxUsagePoints bounds the points of a chart.
const maxUsagePoints = 300

// usageChart is a line over time, of a drawing of usageWidth by usageHeight.
type usageChart struct {
	Title  string
	Points string // of the line, as SVG has it
	Most   string // the last and highest value, with its unit
	From   string // the first time
	To     string // the last, as time since the first
}

const (
	usageWidth  = 600
	usageHeight = 120
)

// jobUsage draws cost and tokens of a job over time.
func jobUsage(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	points, err := v.usage(j.Job)
	if err != nil {
		return err
	}
	return v.fragment("usage", usageCharts(points))
}

// usage reads from a job's log how much its agent had used at which time.
func (v *view) usage(j cove.Job) (points []usagePoint, err error) {
	known, err := agents.Of(j.Agent, j.Definition)
	if err != nil {
		return nil, nil //nolint:nilerr // of a later version, which reports in its own way
	}
	reader := known.Read()
	var last cove.Usage
	for ev, err := range v.api.JobEvents(v.r.Context(), j.ID, 1, false) {
		if err != nil {
			return nil, err
		}
		if ev.Type == "state" && ev.State == cove.JobRunning && len(points) == 0 {
			points = append(points, usagePoint{At: ev.Time})
		}
		reader.Event(ev)
		_, now := reader.Judge(cove.JobEnd{Phase: "done"})
		if now == nil || *now == last {
			continue
		}
		last = *now
		points = append(points, usagePoint{ev.Time, now.CostUSD, now.InputTokens + now.OutputTokens})
		if len(points) > 2*maxUsagePoints {
			points = thin(points)
		}
	}
	return points, nil
}

// thin leaves every other point, and the last.
func thin(points []usagePoint) []usagePoint {
	var out []usagePoint
	for i, p := range points {
		if i%2 == 0 || i == len(points)-1 {
			out = append(out, p)
		}
	}
	return out
}

func usageCharts(points []usagePoint) []usageChart {
	if len(points) < 2 {
		return nil
	}
	first, last := points[0], points[len(points)-1]
	length := max(last.At.Sub(first.At), time.Millisecond)
	draw := func(title, most string, value func(usagePoint) float64) usageChart {
		top := 0.0
		for _, p := range points {
			top = max(top, value(p))
		}
		var line strings.Builder
		for _, p := range points {
			x := float64(p.At.Sub(first.At)) / float64(length) * usageWidth
			y := usageHeight - value(p)/max(top, 1e-9)*(usageHeight-4)
			fmt.Fprintf(&line, "%.1f,%.1f ", min(max(x, 0), usageWidth), min(max(y, 0), usageHeight))
		}
		return usageChart{Title: title, Points: strings.TrimSpace(line.String()), Most: most, From: first.At.UTC().Format("15:04:05 UTC"), To: formatDuration(length)}
	}
	var all []usageChart
	if last.Cost > 0 {
		all = append(all, draw("Cost", fmt.Sprintf("$%.2f", last.Cost), func(p usagePoint) float64 { return p.Cost }))
	}
	if last.Tokens > 0 {
		all = append(all, draw("Tokens", printable.Count(last.Tokens, "token"), func(p usagePoint) float64 { return float64(p.Tokens) }))
	}
	return all
}
