package job

import (
	"testing"

	"github.com/cove-dev/cove"
)

// TestClosed: once a manager is closed, nothing begins that Close did not wait for.
func TestClosed(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.preparations.reserve("000001")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- m.Close() }()
	<-p.ctx.Done()
	select {
	case err := <-closed:
		m.preparations.over(p, nil)
		t.Fatalf("closed during a preparation: %v", err)
	default:
	}
	m.preparations.over(p, p.ctx.Err())
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if p, err := m.preparations.reserve("000002"); err == nil {
		t.Error("a preparation begins")
		m.preparations.over(p, nil)
	}
	if _, err := m.installs.join(&wanted{}); err == nil {
		t.Error("an installation begins")
	}
	m.followers.follow(job.ID)
	m.followers.mu.Lock()
	following := len(m.followers.following)
	m.followers.mu.Unlock()
	if following > 0 {
		t.Errorf("%d jobs are followed", following)
	}
	if got, err := m.Store.Jobs.Get(t.Context(), job.ID); err != nil || got.State != cove.JobQueued {
		t.Errorf("the job: %s, %v", got.State, err)
	}
}
