package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// sayPushed prints the messages of a push, and other remarks on it.
func sayPushed(inv *invocation, opts push.Options, result push.Result, err error) {
	for _, message := range result.Messages {
		inv.say("%s", message)
	}
	if err == nil && opts.Backend != "" && result.NetworkPolicy != nil {
		inv.say("cove tells the backend %s which names the job may reach, but not on which ports.", opts.Backend)
	}
	if err == nil && opts.NetworkPolicy != nil && result.NetworkPolicy == nil {
		inv.say("This server enforces no network policy: the server alone decides what the job reaches.")
	}
}

// stageNames are what people call the stages of a push.
var stageNames = map[string]string{"count": "counting objects", "compress": "compressing objects", "bundle": "packing", "prepare": "preparing the sprite and its agent"}

// sayInstalling tells the number of a job whose agent is being installed.
func sayInstalling(inv *invocation, job cove.Job) {
	if job.Profile != "" && job.TurnAt == nil && jobPattern().MatchString(job.ID) {
		inv.say("Job %s waits for its turn among the jobs of the profile %s. Leave this running: it sends the repository then. End the job: cove job stop %s", job.ID, job.Profile, job.ID)
		return
	}
	if job.Installing != nil && job.Installing.Agent != "the sprite" && jobPattern().MatchString(job.ID) {
		inv.say("Job %s waits until its agent is installed, %s. See how far it is: cove job steps -f %s; end it: cove job stop %s", job.ID, job.Installing.Agent, job.ID, job.ID)
	}
}

// sayLeft says whether a job still exists whose push was interrupted after its id was told.
func sayLeft(ctx context.Context, inv *invocation, c *cove.Client, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	if _, err := c.Job(ctx, id); errors.Is(err, sprites.ErrNotFound) {
		inv.say("Job %s was deleted: it had no repository yet.", id)
		return
	}
	inv.say("Job %s may still be there. Forget it: cove job rm --force %s", id, id)
}

// turnText says which of those it is that wait for their turn. The job has a place.
func turnText(job cove.Job) string {
	return fmt.Sprintf("waiting for its turn (%s of %d at profile %s)", ordinal(job.Place), max(job.PlaceOf, job.Place), printable.Line(job.Profile))
}

// ordinal is 1st, 2nd, 3rd, 4th …
func ordinal(n int) string {
	ending := "th"
	if tens := n / 10 % 10; tens != 1 {
		switch n % 10 {
		case 1:
			ending = "st"
		case 2:
			ending = "nd"
		case 3:
			ending = "rd"
		}
	}
	return fmt.Sprint(n) + ending
}

// preparingTitle is what an installing job's progress is called.
func preparingTitle(job cove.Job) string {
	if job.Place > 0 {
		return "waiting"
	}
	return "installing"
}

// installText says how far the installation for a job is.
func installText(job cove.Job) string {
	p := job.Installing
	if job.Place > 0 {
		return turnText(job)
	}
	if p == nil {
		return "installing"
	}
	text := "preparing " + p.Agent
	switch {
	case job.Install != nil:
		text = "making the sprite"
	case p.Commands > 0:
		text = fmt.Sprintf("installing %s, command %d of %d", p.Agent, p.Command, p.Commands)
	}
	if p.Said != "" && job.Install == nil {
		text += ": " + p.Said
	}
	return text
}

// newCourier makes a Courier that shows its progress; done takes that away.
func newCourier(inv *invocation, c *cove.Client) (courier *push.Courier, done func()) {
	courier = push.New(c)
	var shown *progress
	stage, told := "", ""
	done = func() {
		if shown != nil {
			shown.Close()
			shown = nil
		}
	}
	courier.Installing = func(job cove.Job) {
		if told != job.ID {
			told = job.ID
			done()
			sayInstalling(inv, job)
		}
		if title := job.ID + " " + preparingTitle(job); stage != title {
			done()
			stage = title
			shown = inv.newProgress(preparingTitle(job), 0)
		}
		shown.say(installText(job))
	}
	courier.Away = func(err error) {
		done()
		inv.say("cove: the server has gone away (%s); if it is back within %v, the push goes on", printable.Line(err.Error()), courier.Outlast)
	}
	courier.Progress = func(p push.Progress) {
		if p.Stage != stage || shown == nil && !p.End {
			done()
			stage = p.Stage
			shown = inv.newProgress(cmp.Or(stageNames[p.Stage], p.Stage), p.Total)
		}
		if shown != nil {
			shown.set(p.Done, p.Total, p.Stage == "count" || p.Stage == "compress")
		}
		if p.End {
			done()
		}
	}
	return courier, done
}
