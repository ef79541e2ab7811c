package web

import (
	"bytes"
	"context"
	"fmt"
	"path"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// firstPage leads to a first job that is finished.
type firstPage struct {
	sample
	Job  *cove.Job // the last one on the sample; nil: there is none
	Mark string
	rights
}

// firstJobView is the last first job.
type firstJobView struct {
	*cove.Job
	rights
}

// Shown is Job, as the page shows it.
func (p firstPage) Shown() firstJobView { return firstJobView{p.Job, p.rights} }

// Sum tells two states of the page apart: what is as it was is left alone, with its button.
func (p firstPage) Sum() string {
	if p.Job == nil {
		return "none"
	}
	return hashID(fmt.Sprint(p.Job.ID, p.Shown().StateText(), p.Job.Commits, p.Job.Error))
}

func first(v *view) error {
	page, err := v.first(v.r.Context())
	if err != nil {
		return err
	}
	return v.page("Your first job", "/web/first/live", "first", page)
}

func firstLive(v *view) error {
	return v.stream(func(ctx context.Context, s *stream) error {
		return v.watch(ctx, []string{cove.TopicJobs}, "", func(cove.Notification) error {
			page, err := v.first(ctx)
			if err != nil {
				return err
			}
			return s.replace("first", "first", page)
		})
	})
}

func (v *view) first(ctx context.Context) (firstPage, error) {
	page := firstPage{sample: firstJob(), Mark: v.session.mark(), rights: v.session.rights()}
	jobs, err := v.api.Jobs(ctx)
	for _, job := range jobs {
		if job.RepoID == page.Commit && (page.Job == nil || job.CreatedAt.After(page.Job.CreatedAt)) {
			page.Job = &job
		}
	}
	return page, err
}

// startFirst makes the first job, sends its repository into the job's sprite, and begins it. Nothing
// of git runs outside of the sprite.
func startFirst(v *view) error {
	ctx, s := v.r.Context(), firstJob()
	job, err := v.api.CreateJob(ctx, s.request())
	if err != nil {
		return err
	}
	if job.Upload == "" || !path.IsAbs(job.Upload) {
		err = fail.New("bad_answer", "the server did not say where the repository should go", "")
	} else {
		err = v.api.Sprite(job.Sprite).WriteFile(ctx, job.Upload, bytes.NewReader(s.bundle), sprites.WriteOptions{Size: int64(len(s.bundle))})
	}
	if err == nil {
		_, err = v.api.StartJob(ctx, job.ID, s.start())
	}
	if err != nil {
		if undo := v.api.DeleteJob(context.WithoutCancel(ctx), job.ID, true); undo != nil {
			return fmt.Errorf("%w; and job %s is still there: %w", err, job.ID, undo)
		}
		return err
	}
	v.say("The job is begun.")
	return v.redirect("/web/first")
}
