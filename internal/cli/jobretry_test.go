package cli

import (
	"encoding/json"
	"testing"

	"github.com/cove-dev/cove"
)

// A job that was begun anew is named as cove push names one: by the key job, and by id, too.
func TestBegunNamesJob(t *testing.T) {
	text, err := json.Marshal(begun{"a3f7b2", cove.Job{ID: "a3f7b2", State: cove.JobQueued, JobSettings: cove.JobSettings{Sprite: "paint"}}})
	var got map[string]any
	if err != nil || json.Unmarshal(text, &got) != nil || got["job"] != "a3f7b2" || got["id"] != "a3f7b2" || got["sprite"] != "paint" || got["state"] != "queued" {
		t.Errorf("got %s, %v", text, err)
	}
}
