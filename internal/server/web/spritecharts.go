package web

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// chart is one value over the last hour, as a line of an SVG that is 240 wide and 60 high.
type chart struct {
	Title     string
	Now, Most string
	Line      string // the path; empty: this machine does not measure it
	Area      string // the same, closed at the bottom
}

const (
	chartWidth, chartHeight = 240, 60
	chartTime               = time.Hour
)

// charts draws what the server has measured of a sprite, which it does without waking it. A
// server that measures nothing draws none.
func (v *spriteView) charts(ctx context.Context, h spriteHead) ([]chart, error) {
	stats, err := sprites.Measured(ctx, v.sprite())
	if err != nil {
		return nil, err
	}
	if len(stats.Samples) == 0 {
		return nil, nil
	}
	now := time.Now()
	rate := func(of func(sprites.Sample) int64) func(a, b sprites.Sample) float64 {
		return func(a, b sprites.Sample) float64 {
			if s := b.Time.Sub(a.Time).Seconds(); s > 0 && of(b) >= of(a) {
				return float64(of(b)-of(a)) / s
			}
			return 0
		}
	}
	size := func(f float64) string { return formatBytes(int64(f)) }
	perSecond := func(f float64) string { return size(f) + "/s" }
	last := func(of func(sprites.Sample) int64) func(a, b sprites.Sample) float64 {
		return func(_, b sprites.Sample) float64 { return float64(of(b)) }
	}
	all := []chart{
		draw("Memory", now, measured(stats.Samples, func(s sprites.Sample) int64 { return s.MemoryBytes }), last(func(s sprites.Sample) int64 { return s.MemoryBytes }), size),
		draw("Processors", now, measured(stats.Samples, func(s sprites.Sample) int64 { return s.CPUMicroseconds }), rate(func(s sprites.Sample) int64 { return s.CPUMicroseconds }), func(f float64) string { return fmt.Sprintf("%.1f %%", f/1e4) }),
		draw("Written to disk", now, stats.Samples, rate(func(s sprites.Sample) int64 { return s.WrittenBytes }), perSecond),
		draw("Network, in", now, stats.Samples, rate(func(s sprites.Sample) int64 { return s.ReceivedBytes }), perSecond),
		draw("Network, out", now, stats.Samples, rate(func(s sprites.Sample) int64 { return s.SentBytes }), perSecond),
	}
	return all, nil
}

// measured are the samples that have a value which is 0 only if it is not known.
func measured(samples []sprites.Sample, of func(sprites.Sample) int64) []sprites.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s sprites.Sample) bool { return of(s) == 0 })
}

// draw draws one value of each sample, which may need the one before.
func draw(title string, now time.Time, samples []sprites.Sample, value func(before, s sprites.Sample) float64, say func(float64) string) chart {
	var at []time.Duration
	var values []float64
	most := 0.0
	for i, s := range samples {
		if now.Sub(s.Time) > chartTime {
			continue
		}
		f := value(samples[max(0, i-1)], s)
		at, values, most = append(at, now.Sub(s.Time)), append(values, f), max(most, f)
	}
	if len(values) == 0 {
		return chart{Title: title}
	}
	c := chart{Title: title, Now: say(values[len(values)-1]), Most: say(most)}
	var b strings.Builder
	x := func(d time.Duration) float64 { return chartWidth * (1 - d.Seconds()/chartTime.Seconds()) }
	for i, f := range values {
		y := float64(chartHeight - 2)
		if most > 0 {
			y -= f / most * (chartHeight - 6)
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", map[bool]byte{true: 'M', false: 'L'}[i == 0], x(at[i]), y)
	}
	if len(values) == 1 {
		b.WriteString("h-3") // a point that can be seen
	}
	c.Line = b.String()
	c.Area = fmt.Sprintf("%sL%.1f %dL%.1f %dZ", c.Line, x(at[len(at)-1]), chartHeight, x(at[0]), chartHeight)
	return c
}
