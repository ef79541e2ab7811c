package server

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/profile"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// feed tells subscribers what changes. It keeps nothing for a slow reader, only the reader's
// place among the numbers of the store. When it reads again, it gets the current state of
// everything that has changed since.
type feed struct {
	changes  *store.Changes
	jobs     *store.Jobs
	profiles *store.Profiles

	environments *store.Environments
	access       *access
}

// feedPage is how many changes are read at once.
const feedPage = 100

// topics are the topics of subscriptions, with the function that tells a change. A
// notification without Topic is not for the subscriber.
var topics = map[string]func(*subscriber, context.Context, store.Change) (cove.Notification, error){
	cove.TopicJobs:     (*subscriber).job,
	cove.TopicSteps:    (*subscriber).steps,
	cove.TopicProgress: (*subscriber).progress,
	cove.TopicProfiles: (*subscriber).profile,

	cove.TopicEnvironments: (*subscriber).environment,
}

func topicNames() []string {
	names := make([]string, 0, len(topics))
	for name := range topics {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// subscriber is one client. It sees only what its principal may see.
type subscriber struct {
	*feed
	principal principal
	cove.Subscription
	seq    int64 // of the last change that was told, or was not for it
	synced int64 // all up to this one was there at the subscription

	told map[string]*stepTeller // by job, as long as its preparation is not over
	seen map[string]bool        // jobs and environments that a token for a profile was told of
}

// reaches reports whether the subscriber may see a job or an environment. An environment is
// described by its job and sprite.
func (s *subscriber) reaches(id string, job cove.Job) bool {
	if !s.principal.sees(job) {
		return false
	}
	if s.principal.scope.Profile != "" {
		s.seen[id] = true
	}
	return true
}

// reached is reaches for something that was deleted: only its place is known.
func (s *subscriber) reached(c store.Change) bool {
	had := s.seen[c.Name]
	delete(s.seen, c.Name)
	return had || s.principal.reachesAt(c.Backend, c.Sprite)
}

// begin finds out where a subscription begins.
func (f *feed) begin(ctx context.Context, p principal, sub cove.Subscription) (*subscriber, cove.Subscribed, error) {
	answer := cove.Subscribed{Feed: f.changes.Feed()}
	if !p.may(read) {
		return nil, answer, p.lacks(read)
	}
	for _, topic := range sub.Topics {
		if topics[topic] == nil {
			return nil, answer, fail.Newf(sprite.CodeBadRequest, "there are "+strings.Join(topicNames(), ", "), "there is no topic %s", clean(topic, maxMethod))
		}
	}
	if sub.Since != 0 && sub.Feed == "" || sub.Since < 0 {
		return nil, answer, fail.New(sprite.CodeBadRequest, "since must be a number of the feed that is sent with it", "send both, or neither")
	}
	if sub.Since > 0 {
		known, err := f.changes.Knows(ctx, sub.Feed, sub.Since)
		if err != nil {
			return nil, answer, err
		}
		if !known {
			sub.Since, answer.Gap = 0, true
		}
	}
	last, err := f.changes.Last(ctx)
	if sub.Now {
		sub.Since = last
	}
	return &subscriber{feed: f, principal: p, Subscription: sub, seq: sub.Since, synced: last, told: map[string]*stepTeller{}, seen: map[string]bool{}}, answer, err
}

// tell sends the changes so far, and then new ones, until ctx ends or send fails.
func (s *subscriber) tell(ctx context.Context, send func(cove.Notification) error) error {
	changed, cancel := s.changes.Watch()
	defer cancel()
	synced := false
	for {
		list, err := s.changes.After(ctx, s.Topics, s.Job, s.seq, feedPage)
		if err != nil {
			return err
		}
		if len(list) > 0 && s.principal.scope.Profile != "" { // its jobs have new sprites meanwhile
			if s.principal.own, err = s.access.spritesOf(ctx, s.principal.name); err != nil {
				return err
			}
		}
		for _, change := range list {
			if !synced && change.Seq > s.synced {
				synced = true
				if err := send(cove.Notification{Synced: true}); err != nil {
					return err
				}
			}
			n, err := topics[change.Topic](s, ctx, change)
			if err != nil {
				return err
			}
			if n.Topic != "" {
				n.Seq, n.Name = change.Seq, change.Name
				if err := send(n); err != nil {
					return err
				}
			}
			s.seq = change.Seq
		}
		if len(list) == feedPage {
			continue
		}
		if !synced {
			synced = true
			if err := send(cove.Notification{Synced: true}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// snapshot reports whether a change belongs to the first state that a new subscriber is told.
func (s *subscriber) snapshot(c store.Change) bool { return s.Since == 0 && c.Seq <= s.synced }

func (s *subscriber) job(ctx context.Context, c store.Change) (n cove.Notification, err error) {
	if c.Gone {
		delete(s.told, c.Name)
		if !s.reached(c) || s.snapshot(c) {
			return n, nil
		}
		return cove.Notification{Topic: c.Topic, Deleted: true}, nil
	}
	job, err := s.jobs.Get(ctx, c.Name)
	if errors.Is(err, store.ErrNotFound) {
		return n, nil // which has a number of its own
	}
	if err != nil || !s.reaches(job.ID, job) {
		return n, err
	}
	job.Definition = nil // it may be long
	return cove.Notification{Topic: c.Topic, Job: &job}, nil
}

// progress tells of a job that has not ended. Once it has ended, nobody reads its log further.
func (s *subscriber) progress(ctx context.Context, c store.Change) (n cove.Notification, err error) {
	if n, err = s.job(ctx, c); n.Job == nil {
		return n, err
	}
	if n.Job.State.Terminal() {
		return cove.Notification{}, nil
	}
	brief := n.Job.Brief()
	n.Job = &brief
	return n, nil
}

// steps tells the steps of a job. If the job had ended before the subscription, only a
// subscriber that asks for this job is told.
func (s *subscriber) steps(ctx context.Context, c store.Change) (n cove.Notification, err error) {
	job, err := s.jobs.Get(ctx, c.Name)
	if errors.Is(err, store.ErrNotFound) {
		return n, nil
	}
	if err != nil || !s.principal.sees(job) || s.snapshot(c) && s.Job == "" && job.State.Terminal() {
		return n, err
	}
	all, err := stepsOf(ctx, s.jobs, job)
	if err != nil {
		return n, err
	}
	teller := s.told[job.ID]
	if teller == nil {
		teller = &stepTeller{}
		s.told[job.ID] = teller
	}
	news := teller.news(all)
	if all.Over() {
		news = append(news, cove.StepNews{Over: true})
		delete(s.told, job.ID)
	}
	if len(news) == 0 {
		return n, nil
	}
	return cove.Notification{Topic: c.Topic, Steps: news}, nil
}

func (s *subscriber) profile(ctx context.Context, c store.Change) (n cove.Notification, err error) {
	if !s.principal.knows(c.Name) {
		return n, nil
	}
	if c.Gone {
		if s.snapshot(c) {
			return n, nil
		}
		return cove.Notification{Topic: c.Topic, Deleted: true}, nil
	}
	p, err := s.profiles.Get(ctx, c.Name)
	if errors.Is(err, store.ErrNotFound) {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	if !s.principal.may(admin) {
		p = profile.Hidden(p)
	}
	return cove.Notification{Topic: c.Topic, Profile: &p}, nil
}

func (s *subscriber) environment(ctx context.Context, c store.Change) (n cove.Notification, err error) {
	if c.Gone {
		if !s.reached(c) || s.snapshot(c) {
			return n, nil
		}
		return cove.Notification{Topic: c.Topic, Deleted: true}, nil
	}
	env, err := s.environments.Get(ctx, c.Name)
	if errors.Is(err, store.ErrNotFound) {
		return n, nil
	}
	if err != nil || !s.reaches(env.ID, cove.Job{JobSettings: cove.JobSettings{Backend: env.Backend, Sprite: env.Name}}) {
		return n, err
	}
	return cove.Notification{Topic: c.Topic, Environment: &env}, nil
}
