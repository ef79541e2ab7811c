package supervise

import (
	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/mask"
)

// masked is an event without the secrets that a mask knows.
func masked(m mask.Mask, ev cove.JobEvent) cove.JobEvent {
	ev.Text, ev.Reason = m.Hide(ev.Text), m.Hide(ev.Reason)
	if ev.Step != nil {
		step := *ev.Step
		step.Detail, step.Warning, step.Error = m.Hide(step.Detail), m.Hide(step.Warning), m.Hide(step.Error)
		ev.Step = &step
	}
	return ev
}
