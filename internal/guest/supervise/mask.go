package supervise

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
)

// minMasked is the length of the shortest text that is masked: a shorter one is in anything.
const minMasked = 8

// asterisks stand for a secret.
const asterisks = "***"

// mask puts asterisks in the place of secrets. The zero value knows none.
type mask struct {
	secrets []string // the longest first
	all     *strings.Replacer
}

// newMask is a mask for secrets, their lines, and both as JSON has them.
func newMask(values []string) mask {
	var m mask
	for _, value := range values {
		for _, text := range append(strings.Split(value, "\n"), value) {
			text = strings.TrimSpace(text)
			quoted, err := json.Marshal(text)
			if err != nil || len(text) < minMasked {
				continue
			}
			m.secrets = append(m.secrets, text, strings.Trim(string(quoted), `"`))
		}
	}
	slices.SortFunc(m.secrets, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	m.secrets = slices.Compact(m.secrets)
	var pairs []string
	for _, secret := range m.secrets {
		pairs = append(pairs, secret, asterisks)
	}
	m.all = strings.NewReplacer(pairs...)
	return m
}

// hide is a text without the secrets.
func (m mask) hide(text string) string {
	if m.all == nil {
		return text
	}
	return m.all.Replace(text)
}

// event is an event without the secrets.
func (m mask) event(ev cove.JobEvent) cove.JobEvent {
	ev.Text, ev.Reason = m.hide(ev.Text), m.hide(ev.Reason)
	if ev.Step != nil {
		step := *ev.Step
		step.Detail, step.Warning, step.Error = m.hide(step.Detail), m.hide(step.Warning), m.hide(step.Error)
		ev.Step = &step
	}
	return ev
}

// begun is how many bytes at the end of b may be the beginning of a secret.
func (m mask) begun(b []byte) int {
	longest := 0
	for _, secret := range m.secrets {
		for n := min(len(secret)-1, len(b)); n > longest; n-- {
			if bytes.HasSuffix(b, []byte(secret[:n])) {
				longest = n
			}
		}
	}
	return longest
}
