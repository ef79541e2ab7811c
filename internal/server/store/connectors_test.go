package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
)

func TestConnectors(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	k := s.Connectors
	granted := func(sprite string) string {
		t.Helper()
		list, err := k.Granted(ctx, sprite)
		must(t, err)
		var names []string
		for _, c := range list {
			names = append(names, c.Name)
		}
		return strings.Join(names, " ")
	}
	def := cove.Connector{Name: "api", Upstream: "https://a.example", Headers: map[string]string{"X-Key": "{secret}"}, Limits: cove.ConnectorLimits{Requests: 3}}
	must(t, k.Put(ctx, def))
	must(t, k.Put(ctx, cove.Connector{Name: "other", Upstream: "https://b.example"}))
	paint := Sprite{ID: "1", Name: "paint", Labels: []string{"ci"}}
	must(t, s.Sprites.Create(ctx, &paint))
	must(t, s.Sprites.Create(ctx, &Sprite{ID: "2", Name: "tool", Labels: []string{"", "x"}}))
	if got := granted("paint"); got != "" {
		t.Errorf("granted to nobody: got %q", got)
	}
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Sprite: "paint"}))
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Sprite: "paint"}))
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Label: "ci", Reaches: []string{"paint"}}))
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Label: "ci"})) // it is there already
	must(t, k.Grant(ctx, "other", cove.ConnectorGrant{Label: "ci", Reaches: []string{"nobody", "paint"}}))
	if got := granted("paint") + "," + granted("tool") + "," + granted("nobody"); got != "api other,," {
		t.Errorf("got %q", got)
	}
	for name, g := range map[string]cove.ConnectorGrant{"nosuch": {Sprite: "paint"}, "api": {Sprite: "nobody"}, "other": {Sprite: "paint", Job: "nosuch"}} {
		if err := k.Grant(ctx, name, g); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s to %+v: got %v", name, g, err)
		}
	}

	// A definition is replaced, its grants stay.
	def.Upstream = "https://c.example"
	must(t, k.Put(ctx, def))
	got, err := k.Get(ctx, "api")
	must(t, err)
	if got.CreatedAt.IsZero() || !got.UpdatedAt.After(got.CreatedAt) {
		t.Errorf("made %v, changed %v", got.CreatedAt, got.UpdatedAt)
	}
	want := def
	want.Grants = []cove.ConnectorGrant{{Label: "ci"}, {Sprite: "paint"}}
	want.CreatedAt, want.UpdatedAt = got.CreatedAt, got.UpdatedAt
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if list, err := k.List(ctx); err != nil || len(list) != 2 || len(list[1].Grants) != 1 {
		t.Errorf("got %+v, %v", list, err)
	}

	// By a label, while the sprite has it; by a name, while the sprite is there.
	must(t, k.Revoke(ctx, "api", cove.ConnectorGrant{Label: "ci"}))
	must(t, k.Revoke(ctx, "api", cove.ConnectorGrant{Label: "ci"}))
	_, err = s.Sprites.Update(ctx, "1", func(s *Sprite) error { s.Labels = nil; return nil })
	must(t, err)
	if got := granted("paint"); got != "api" {
		t.Errorf("without the label: got %q", got)
	}
	must(t, s.Sprites.Delete(ctx, "1"))
	must(t, s.Sprites.Create(ctx, &Sprite{ID: "3", Name: "paint"}))
	if got := granted("paint"); got != "" {
		t.Errorf("another sprite of the name: got %q", got)
	}

	// A job's ends with it, and is for its sprite.
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "j1", State: cove.JobQueued, JobSettings: cove.JobSettings{Sprite: "paint"}}, nil))
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Sprite: "paint", Job: "j1"}))
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Sprite: "tool", Job: "j1"}))
	if got := granted("paint") + "," + granted("tool"); got != "api," {
		t.Errorf("while the job runs: got %q", got)
	}
	_, err = s.Jobs.Finish(ctx, "j1", cove.JobFailed, cove.Outcome{}, nil)
	must(t, err)
	if got := granted("paint"); got != "" {
		t.Errorf("after the job: got %q", got)
	}
	must(t, k.Revoke(ctx, "api", cove.ConnectorGrant{Job: "j1"}))
	if got, err := k.Get(ctx, "api"); err != nil || len(got.Grants) != 0 {
		t.Errorf("got %+v, %v", got.Grants, err)
	}
	must(t, k.Delete(ctx, "other"))
	if err := k.Delete(ctx, "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: got %v", err)
	}
	must(t, k.Put(ctx, cove.Connector{Name: "other", Upstream: "https://b.example"}))
	if got, err := k.Get(ctx, "other"); err != nil || len(got.Grants) != 0 {
		t.Errorf("grants outlive a connector: %+v, %v", got.Grants, err)
	}
}

// TestGrantNamesLabelled: a new grant to a label names all sprites that have the label,
// and those that a job under way will give it to.
func TestGrantNamesLabelled(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	k := s.Connectors
	must(t, k.Put(ctx, cove.Connector{Name: "api", Upstream: "https://a.example"}))
	for id, labels := range map[string][]string{"one": {"ci", "x"}, "two": {"ci"}, "three": {"x"}, "cove-j5": nil} {
		must(t, s.Sprites.Create(ctx, &Sprite{ID: id, Name: id, Labels: labels}))
	}
	for id, job := range map[string]cove.Job{
		"j1": {State: cove.JobInstalling, OwnsSprite: true, JobSettings: cove.JobSettings{Sprite: "cove-j1"}},
		"j5": {State: cove.JobInstalling, OwnsSprite: true, JobSettings: cove.JobSettings{Sprite: "cove-j5"}}, // whose name somebody has taken, and may give back
		"j2": {State: cove.JobSucceeded, OwnsSprite: true, JobSettings: cove.JobSettings{Sprite: "cove-j2"}},
		"j3": {State: cove.JobQueued, OwnsSprite: true, JobSettings: cove.JobSettings{Sprite: "cove-j3", Backend: "far"}},
		"j4": {State: cove.JobQueued, JobSettings: cove.JobSettings{Sprite: "three"}},
	} {
		job.ID = id
		must(t, s.Jobs.Create(ctx, job, nil))
	}
	for _, c := range []struct {
		label, all string
		reaches    []string
		unnamed    string
	}{
		{label: "ci", all: "one two", unnamed: "one two"},
		{label: "ci", reaches: []string{"two", "three"}, all: "one two", unnamed: "one"},
		{label: JobLabel, all: "cove-j1 cove-j5", unnamed: "cove-j1 cove-j5"},
	} {
		err := k.Grant(ctx, "api", cove.ConnectorGrant{Label: c.label, Reaches: c.reaches})
		e, ok := errors.AsType[*UnnamedError](err)
		if !ok || strings.Join(e.Sprites, " ") != c.all || strings.Join(e.Unnamed, " ") != c.unnamed || e.Label != c.label {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	def, err := k.Get(ctx, "api")
	if err != nil || len(def.Grants) != 0 {
		t.Errorf("the grants are %v, %v", def.Grants, err)
	}
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Label: JobLabel, Reaches: []string{"cove-j1", "cove-j5"}}))
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Label: "ci", Reaches: []string{"two", "one"}}))
	must(t, k.Grant(ctx, "api", cove.ConnectorGrant{Label: "nobody has it"}))
}
