package web

import (
	"context"
	"fmt"

	"github.com/cove-dev/cove"
)

// trial is a test of an executor, as a page shows it.
type trial struct {
	Of    string // for people
	Steps []cove.ExecutorStep
	Over  bool
	OK    bool
	Error *problem
}

// heard takes in a line of news: a step is there once, as it was last.
func (t *trial) heard(n cove.ExecutorNews) {
	if n.Over {
		t.Over, t.OK = true, n.OK
	}
	if n.Step == nil {
		return
	}
	for i := range t.Steps {
		if t.Steps[i].Key == n.Step.Key {
			t.Steps[i] = *n.Step
			return
		}
	}
	t.Steps = append(t.Steps, *n.Step)
}

// testExecutor runs the test harness, and streams its steps into the element "trial". A URL and its
// token are in the request alone: nothing of them is kept, or shown again.
func testExecutor(v *view) error {
	f := v.r.PostForm
	test := cove.ExecutorTest{Profile: f.Get("profile"), Backend: f.Get("backend"), URL: f.Get("url"), Token: f.Get("token"), Quick: f.Get("quick") != ""}
	t := trial{Of: "this server"}
	switch {
	case test.Profile != "":
		t.Of = "the profile " + test.Profile
	case test.Backend != "":
		t.Of = "the backend " + test.Backend
	case test.URL != "":
		t.Of = test.URL
	}
	return v.stream(func(ctx context.Context, s *stream) error {
		if err := s.replace("trial", "trial", t); err != nil {
			return err
		}
		err := cove.Executors{Client: v.api}.Test(ctx, test, func(n cove.ExecutorNews) error {
			t.heard(n)
			return s.replace("trial", "trial", t)
		})
		if err == nil {
			return nil
		}
		p := describe(err)
		t.Error, t.Over = &p, true
		if told := s.replace("trial", "trial", t); told != nil {
			return fmt.Errorf("%w; and the page is gone: %w", err, told)
		}
		return nil
	})
}
