package sprite

import (
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

func TestRetain(t *testing.T) {
	const noon, midnight = 12 * time.Hour, 24 * time.Hour
	day := time.Date(2030, 3, 1, 0, 0, 0, 0, time.UTC)
	at := func(name string, days int, hour time.Duration) store.Checkpoint {
		return store.Checkpoint{Name: name, Auto: true, CreatedAt: day.AddDate(0, 0, days).Add(hour)}
	}
	// The newest first. Nothing was made on the day before the last.
	list := []store.Checkpoint{at("g", 4, noon+2), at("f", 4, noon), at("e", 2, midnight-1), at("d", 2, 0), at("c", 1, noon), at("b", 0, noon), at("a", 0, 0)}
	asked, labelled := at("asked", 4, noon+1), at("label", 0, noon+1)
	asked.Auto, labelled.Labels = false, []string{"green"}
	for _, c := range []struct {
		rule   sprites.Retention
		all    bool
		extra  []store.Checkpoint // the newest first
		source string
		want   string
	}{
		{rule: sprites.Retention{Last: 2}, want: "gf"},
		{rule: sprites.Retention{Last: 100}, want: "gfedcba"},
		{rule: sprites.Retention{Daily: 1}, want: "g"},
		{rule: sprites.Retention{Daily: 3}, want: "gec"},
		{rule: sprites.Retention{Daily: 9}, want: "gecb"},
		{rule: sprites.Retention{Last: 3, Daily: 3}, want: "gfec"},
		{rule: sprites.Retention{Last: 1}, source: "b", want: "gb"},
		{rule: sprites.Retention{Last: 1}, extra: []store.Checkpoint{asked}, want: "gasked"},
		{rule: sprites.Retention{Last: 1}, all: true, want: "g"},
		{rule: sprites.Retention{Last: 2}, all: true, extra: []store.Checkpoint{asked}, want: "gaskedf"},
		{rule: sprites.Retention{Last: 1}, extra: []store.Checkpoint{asked, labelled}, all: true, want: "gaskedlabel"},
	} {
		all := append([]store.Checkpoint{list[0]}, append(c.extra, list[1:]...)...)
		var got strings.Builder
		for i, why := range retain(all, c.source, c.rule, c.all) {
			if why != "" {
				got.WriteString(all[i].Name)
			}
		}
		if got.String() != c.want {
			t.Errorf("%+v, all %v: kept are %s, want %s", c.rule, c.all, got.String(), c.want)
		}
	}
}
