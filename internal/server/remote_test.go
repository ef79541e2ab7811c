package server_test

import (
	"errors"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

func isCode(err error, code string) bool {
	e, ok := errors.AsType[*sprites.Error](err)
	return ok && e.Code == code
}

// TestRemoteRights: a job that clones a URL is granted the connector that leads there. So the
// administrator names the repository: in the request, or in a profile that others use.
func TestRemoteRights(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Jobs: func(st *store.Store, client *cove.Client) (server.Jobs, func() error, error) {
		m := &job.Manager{Store: st, Client: client}
		return m, m.Close, m.Resume(t.Context())
	}})
	token, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "worker", Scope: cove.TokenScope{All: true}, Verbs: []string{cove.VerbRead, cove.VerbWrite, cove.VerbExec}})
	must(t, err)
	inner := *s.Client().Client
	inner.Token = token.Secret
	worker := &cove.Client{Client: &inner}
	const url = "https://git.example.org/team/project.git"
	ask := cove.JobRequest{Plan: "```sh\ntrue\n```\n", JobSettings: cove.JobSettings{Agent: "shell"}, JobSource: cove.JobSource{PlanName: "plan.md", URL: url}}
	if _, err := worker.CreateJob(t.Context(), ask); !isCode(err, "forbidden") {
		t.Errorf("a token without the verb admin: got %v", err)
	}
	_, err = s.Client().CreateJob(t.Context(), ask)
	must(t, err)
	_, err = cove.Profiles{Client: s.Client()}.Put(t.Context(), "project", 0, cove.ProfileSettings{Agent: "shell", URL: url, Branch: "main"})
	must(t, err)
	seen, err := cove.Profiles{Client: worker}.Get(t.Context(), "project")
	failIf(t, err != nil || seen.URL != url || seen.Branch != "main", "a profile's user sees %+v, %v", seen, err)
	ask.JobSource, ask.JobSettings = cove.JobSource{PlanName: "plan.md"}, cove.JobSettings{Profile: "project"}
	made, err := worker.CreateJob(t.Context(), ask)
	failIf(t, err != nil || made.URL != url || made.Branch != "main", "by the profile: got %+v, %v", made, err)
	if _, err := (cove.Profiles{Client: s.Client()}).Put(t.Context(), "project", 0, cove.ProfileSettings{Agent: "shell", Branch: "main"}); !isCode(err, "bad_request") {
		t.Errorf("a branch of nothing: got %v", err)
	}
}
