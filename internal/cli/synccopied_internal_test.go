package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// TestCopiedIsPulled: once the files of a first job are here, it counts as pulled, at its last
// commit. A job whose commits can be pulled does not, nor does one that works in another
// folder.
func TestCopiedIsPulled(t *testing.T) {
	at := time.Now()
	job := func(id string, edit func(*cove.Job)) cove.Job {
		j := cove.Job{ID: id, State: cove.JobSucceeded, Workdir: "/home/sprite/hello"}
		j.Sprite, j.RepoID, j.Head, j.Bundle.Size = "paint", cove.FirstJobRepo, "cafe", 9
		edit(&j)
		return j
	}
	jobs := []cove.Job{
		job("a00001", func(*cove.Job) {}),
		job("a00002", func(j *cove.Job) { j.RepoID = "beef" }),
		job("a00003", func(j *cove.Job) { j.Workdir = "/home/sprite/other" }),
		job("a00004", func(j *cove.Job) { j.State = cove.JobRunning }),
		job("a00005", func(j *cove.Job) { j.PulledAt = &at }),
		job("a00006", func(j *cove.Job) { j.Bundle.Size = 0 }),
	}
	var marked []string
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sprite") != "paint" {
			t.Errorf("asked for %s", r.URL)
		}
		_ = json.NewEncoder(w).Encode(cove.JobList{Jobs: jobs})
	})
	mux.HandleFunc("POST /v1/jobs/{id}/pulled", func(w http.ResponseWriter, r *http.Request) {
		var said cove.JobPulled
		_ = json.NewDecoder(r.Body).Decode(&said)
		marked = append(marked, r.PathValue("id")+" at "+said.Head)
		_ = json.NewEncoder(w).Encode(jobs[0])
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	c := &cove.Client{Client: &sprites.Client{URL: s.URL, Token: "token"}}
	if err := markCopied(t.Context(), c, "paint", "/home/sprite/hello"); err != nil || !slices.Equal(marked, []string{"a00001 at cafe"}) {
		t.Errorf("pulled are %q, %v", marked, err)
	}
}
