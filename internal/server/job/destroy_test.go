package job

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/cove-dev/cove"
)

// TestDestroyHangs: if the deletion of an environment takes all of its time, its jobs end all the
// same. A job that is being removed stays so.
func TestDestroyHangs(t *testing.T) {
	for name, test := range map[string]struct {
		ask  func(*testing.T, *Manager, cove.Job) error
		want func(cove.Job) bool
	}{
		"an environment": {
			func(t *testing.T, m *Manager, job cove.Job) error {
				env, err := m.DestroyEnvironment(t.Context(), job.Execution, true)
				if err == nil && env.State != cove.EnvironmentDestroying {
					t.Errorf("it is %+v", env)
				}
				return err
			},
			func(job cove.Job) bool { return job.State == cove.JobCancelled },
		},
		"a job": {
			func(t *testing.T, m *Manager, job cove.Job) error {
				if err := m.Delete(t.Context(), job.ID, true); err == nil {
					t.Error("a job whose sprite is there is deleted")
				}
				return nil
			},
			func(job cove.Job) bool { return job.Removing },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := inBubble(t, func(r *http.Request) (*http.Response, error) {
					<-r.Context().Done()
					return nil, r.Context().Err()
				})
				job := m.row(t)
				if _, err := m.Store.Environments.Change(t.Context(), job.Execution, func(e *cove.Environment) error {
					e.State = cove.EnvironmentCreating
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if err := test.ask(t, m, job); err != nil {
					t.Error(err)
				}
				if got, err := m.Store.Jobs.Get(t.Context(), job.ID); err != nil || !test.want(got) {
					t.Errorf("the job is %s, %+v, %v", got.State, got.JobProgress, err)
				}
			})
		})
	}
}
