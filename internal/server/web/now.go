package web

import (
	"context"

	"github.com/cove-dev/cove"
)

// nowPage is the start page: the jobs, by what they need.
type nowPage struct {
	Needs, Working, Review []cove.Job
}

func now(v *view) error {
	page, err := v.now(v.r.Context())
	if err != nil {
		return err
	}
	return v.page("Now", "/web/now/live", "now", page)
}

func nowLive(v *view) error {
	return v.stream(func(ctx context.Context, s *stream) error {
		return v.watch(ctx, []string{cove.TopicJobs}, "", func(cove.Notification) error {
			page, err := v.now(ctx)
			if err != nil {
				return err
			}
			return s.replace("now", "now", page)
		})
	})
}

func (v *view) now(ctx context.Context) (p nowPage, err error) {
	jobs, err := v.api.Jobs(ctx)
	for _, job := range jobs {
		switch {
		case job.State == cove.JobWaiting || job.Held != nil:
			p.Needs = append(p.Needs, job)
		case !job.State.Terminal():
			p.Working = append(p.Working, job)
		case job.PulledAt == nil:
			p.Review = append(p.Review, job)
		}
	}
	return p, err
}
