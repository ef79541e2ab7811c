package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// TestImportAfterGrant: a connector is granted to a label while a token without the verb admin
// imports a sprite with that label. The import neither holds up the grant nor gets the connector.
func TestImportAfterGrant(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	archive := []byte(h.run("", "cove", "export", "paint"))
	h.run("", "cove", "connector", "put", "api", "--upstream", "https://api.example", "--header", "X-Key: none")
	owner := h.client()
	weak := *owner.Client
	_, weak.Token = h.token("weak", "--all", "--verbs", "read,write,exec")
	begin := func(name, label string) (slow *halves, ended chan error) {
		slow, ended = newHalves(archive), make(chan error, 1)
		go func() {
			_, err := weak.Import(context.WithoutCancel(t.Context()), slow, sprites.ImportOptions{Name: name, Labels: []string{label}})
			ended <- err
		}()
		return slow, ended
	}
	slow, ended := begin("sly", "ci")
	await(t, "the import is under way", func() bool {
		staged, err := os.ReadDir(filepath.Join(h.data, "imports"))
		return err == nil && len(staged) > 0
	})
	h.run("", "cove", "connector", "grant", "api", "--label", "ci")
	close(slow.more)
	if err := <-ended; !errors.Is(err, sprites.ErrForbidden) || !strings.Contains(err.Error(), "the label ci has a connector") {
		t.Errorf("the import: got %v", err)
	}
	if out, code := h.try("", "cove", "info", "sly"); code == 0 {
		t.Errorf("there is a sprite: %s", out)
	}
	_, ended = begin("other", "ci")
	if err := <-ended; !errors.Is(err, sprites.ErrForbidden) {
		t.Errorf("an import after the grant: got %v", err)
	}
	if _, err := weak.Import(t.Context(), bytes.NewReader(archive), sprites.ImportOptions{Name: "free", Labels: []string{"free"}}); err != nil {
		t.Errorf("an import with a label that has no grant: got %v", err)
	}
}
