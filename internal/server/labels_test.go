package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// A token without the verb admin gets no connector by a label: neither if it takes the
// label before the grant nor after it.
func TestLabelIsNoGrant(t *testing.T) {
	s, rt := startConnected(t)
	c, ctx := s.Server.Client(), t.Context()
	tok := bearer(token(t, s, cove.TokenScope{All: true}, "read", "write", "exec"))
	must(t, c.SetSecret(ctx, "key", "value-one"))
	for _, name := range []string{"api", "second"} {
		_, err := c.PutConnector(ctx, xKey(name))
		must(t, err)
	}
	_, err := c.Create(ctx, sprites.CreateRequest{Name: "paint", Labels: []string{"it's ci"}})
	must(t, err)
	a := ask(t, s, "POST /v1/sprites", `{"name":"sly","labels":["it's ci"]}`, tok)
	failIf(t, a.StatusCode != 201, "%d %s", a.StatusCode, a.body)
	must(t, c.Sprite("sly").Command("true").Run())
	must(t, c.Sprite("paint").Command("true").Run())

	refused := func(what, connector, label, hint string, reaches ...string) {
		t.Helper()
		doc, err := json.Marshal(cove.ConnectorGrant{Label: label, Reaches: reaches})
		must(t, err)
		a := ask(t, s, "POST /v1/connectors/"+connector+"/grants", string(doc))
		a.refused(t, 409, "in_use")
		var e sprites.ErrorBody
		must(t, json.Unmarshal(a.body, &e))
		failIf(t, !strings.HasSuffix(e.Hint, hint), "%s: the hint is %q, want %q", what, e.Hint, hint)
		failIf(t, rt.of("sly") != "" || rt.of("paint") != "", "%s: sly has %q, paint has %q", what, rt.of("sly"), rt.of("paint"))
	}
	whole := `cove connector grant api --label 'it'\''s ci' --reaches paint,sly`
	refused("nothing is named", "api", "it's ci", whole)
	refused("one is not named", "api", "it's ci", whole, "paint")
	_, err = c.Update(ctx, "sly", sprites.UpdateRequest{ClearLabels: true})
	must(t, err)
	must(t, c.GrantConnector(ctx, "api", cove.ConnectorGrant{Label: "it's ci", Reaches: []string{"paint"}}))
	failIf(t, rt.of("paint") != "api value-one" || rt.of("sly") != "", "paint has %q, sly has %q", rt.of("paint"), rt.of("sly"))

	// After the grant.
	for _, body := range []string{`{"labels":["it's ci"]}`, `{"labels":["other","it's ci"]}`} {
		ask(t, s, "PUT /v1/sprites/sly", body, tok).refused(t, 403, "forbidden")
	}
	ask(t, s, "POST /v1/sprites", `{"name":"new","labels":["it's ci"]}`, tok).refused(t, 403, "forbidden")
	ask(t, s, "POST /v1/sprites/import?label=it%27s+ci&name=new", "", tok).refused(t, 403, "forbidden")
	ask(t, s, "POST /v1/sprites/paint/fork", `{"name":"new","labels":["it's ci"]}`, tok).refused(t, 403, "forbidden") // paint has it, the fork has not
	ask(t, s, "POST /v1/sprites/import?label=%FF&name=new", "", tok).refused(t, 400, "bad_request")
	// The sprite keeps a label that it has, but only as long as it has it.
	a = ask(t, s, "PUT /v1/sprites/paint", `{"labels":["it's ci","more"]}`, tok)
	failIf(t, a.StatusCode != 200, "%d %s", a.StatusCode, a.body)
	ask(t, s, "PUT /v1/sprites/paint", `{"labels":["it's ci"]}`, tok, header("If-Match", "another")).refused(t, 412, "sprite_changed")
	failIf(t, rt.of("sly") != "", "sly has %q", rt.of("sly"))
	refused2 := ask(t, s, "POST /v1/connectors/second/grants", `{"label":"it's ci"}`)
	refused2.refused(t, 409, "in_use") // a label that has a grant reaches the same sprites by another
	ask(t, s, "POST /v1/connectors/api/grants", `{"sprite":"paint","reaches":["paint"]}`).refused(t, 400, "bad_request")
}

// TestJobLabelIsNoGrant: the label that the server gives the sprites of jobs is like any
// other. A caller that may not grant takes it neither before a grant nor after it, and gets no
// grant by a push.
func TestJobLabelIsNoGrant(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Jobs: func(st *store.Store, c *cove.Client) (server.Jobs, func() error, error) {
		m := &job.Manager{Store: st, Client: c}
		return m, m.Close, m.Resume(t.Context())
	}})
	c, ctx := s.Server.Client(), t.Context()
	tok := bearer(token(t, s, cove.TokenScope{All: true}, "read", "write", "exec"))
	_, err := c.PutConnector(ctx, xKey("api"))
	must(t, err)
	request := `{"agent":"shell","plan":"~~~sh\ntrue\n~~~","repository":"repo","branch":"main","base":"` + strings.Repeat("a", 40) + `"}`
	a := ask(t, s, "POST /v1/jobs", request, tok)
	failIf(t, a.StatusCode != 201, "%d %s", a.StatusCode, a.body)
	var pushed cove.Job
	must(t, json.Unmarshal(a.body, &pushed))
	var e sprites.ErrorBody
	a = ask(t, s, "POST /v1/connectors/api/grants", `{"label":"cove-job"}`)
	a.refused(t, 409, "in_use")
	must(t, json.Unmarshal(a.body, &e))
	failIf(t, !strings.HasSuffix(e.Hint, "cove connector grant api --label cove-job --reaches "+pushed.Sprite), "the hint is %q", e.Hint)
	must(t, c.GrantConnector(ctx, "api", cove.ConnectorGrant{Label: "cove-job", Reaches: []string{pushed.Sprite}}))
	ask(t, s, "POST /v1/jobs", request, tok).refused(t, 403, "forbidden")
	ask(t, s, "POST /v1/jobs/"+pushed.ID+"/retry", `{}`, tok).refused(t, 403, "forbidden")
	a = ask(t, s, "POST /v1/jobs", request)
	failIf(t, a.StatusCode != 201, "with the verb admin: %d %s", a.StatusCode, a.body)
}

// slowStager is a runtime that makes an import wait.
type slowStager struct {
	*connected
	begun, release chan struct{}
}

var errStaged = errors.New("nothing is staged here")

func (r *slowStager) Layers() sprite.LayerStore { return &slowLayers{r} }

type slowLayers struct{ of *slowStager }

func (s *slowLayers) Stage(ctx context.Context) (layers.Dir, error) {
	close(s.of.begun)
	select {
	case <-s.of.release:
	case <-ctx.Done():
	}
	return layers.Dir{}, errStaged
}

func (s *slowLayers) Adopt(context.Context, layers.Dir, string, string) error { return errStaged }

func (s *slowLayers) Dir(string) layers.Dir { return layers.Dir{} }

func (s *slowLayers) Open(context.Context, string, []string) (sprite.Disk, error) {
	return nil, errStaged
}

func (s *slowLayers) Merge(context.Context, string, []string) error { return errStaged }

func (s *slowLayers) Base(context.Context, string) (archive.Base, error) {
	return archive.Base{}, errStaged
}

func (s *slowLayers) Under(string) (string, error) { return "", nil }

// A sprite that is being made with a label while a connector is granted to that does not
// slip through.
func TestGrantWaitsForLabelled(t *testing.T) {
	rt := &slowStager{connected: &connected{InProcess: &covetest.InProcess{Dir: t.TempDir()}, dir: t.TempDir()}, begun: make(chan struct{}), release: make(chan struct{})}
	t.Cleanup(func() { must(t, rt.Close()) })
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	c, ctx := s.Server.Client(), t.Context()
	tok := bearer(token(t, s, cove.TokenScope{All: true}, "read", "write", "exec"))
	_, err := c.PutConnector(ctx, xKey("api"))
	must(t, err)
	imported := make(chan answer, 1)
	go func() { imported <- ask(t, s, "POST /v1/sprites/import?name=sly&label=ci", "", tok) }()
	select {
	case <-rt.begun:
	case a := <-imported:
		t.Fatalf("the import has ended: %d %s", a.StatusCode, a.body)
	}
	must(t, c.GrantConnector(ctx, "api", cove.ConnectorGrant{Label: "ci"})) // an archive may be long on its way
	close(rt.release)
	(<-imported).refused(t, 500, "internal") // TestImportAfterGrant has one that comes to its end

	// Whichever of two calls is first, never do both succeed unless the grant named the sprite.
	for i := range 40 {
		label := fmt.Sprint("race-", i)
		var made answer
		var granted error
		var wg sync.WaitGroup
		wg.Go(func() {
			made = ask(t, s, "POST /v1/sprites", fmt.Sprintf(`{"name":"s%d","labels":[%q]}`, i, label), tok)
		})
		wg.Go(func() { granted = c.GrantConnector(ctx, "api", cove.ConnectorGrant{Label: label}) })
		wg.Wait()
		failIf(t, made.StatusCode == 201 && granted == nil, "%s was given, and has a grant", label)
		failIf(t, made.StatusCode != 201 && granted != nil, "neither: %d %s, %v", made.StatusCode, made.body, granted)
	}
}
