package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// A grant to a label reaches every sprite that has the label. So a token without the verb
// admin may not give a label that has a grant, and a new grant names the sprites that have
// the label already (store.Connectors.Grant).

// labelling counts, for each label, the calls without the verb admin that are about to give
// it. Such a call has looked whether the label has a grant, and its sprite is not stored yet.
type labelling struct {
	mu    sync.Mutex // held while a connector is granted to a label
	calls map[string]int
}

// begin counts a call. done is to be called when its sprite is stored, or will not be.
func (l *labelling) begin(labels []string) (done func()) {
	add := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.calls == nil {
			l.calls = map[string]int{}
		}
		for _, label := range labels {
			if l.calls[label] += n; l.calls[label] == 0 {
				delete(l.calls, label)
			}
		}
	}
	add(1)
	return sync.OnceFunc(func() { add(-1) })
}

// grant calls store, unless a call is about to give the label. Calls that begin meanwhile
// wait, and find the grant.
func (l *labelling) grant(label string, store func() error) error {
	if label == "" {
		return store()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls[label] > 0 {
		return fail.New(sprite.CodeInUse, "a token without the verb admin is giving a sprite the label "+clean(label, maxGuestText)+" just now",
			"try again when that is done: a grant to a label names the sprites that have it")
	}
	return store()
}

// mayLabel refuses labels by which a sprite would get a connector, if the caller may not
// grant it. The sprite that the path names keeps the labels that it has. kept is the revision
// of that sprite, if the answer rests on its labels. done is to be called when the labels
// are stored, or will not be.
func mayLabel(s *Server, r *http.Request, labels []string) (kept string, done func(), err error) {
	if principalOf(r).may(admin) {
		return "", func() {}, nil
	}
	done = s.rights.labels.begin(labels)
	var has []string
	var revision string
	if name := r.PathValue("name"); name != "" {
		if has, revision, err = sprite.Labels(r.Context(), s.Host, name); err != nil {
			done()
			return "", nil, err
		}
	}
	for _, l := range labels {
		granted, err := s.Store.Connectors.Labelled(r.Context(), l)
		if err == nil && granted && slices.Contains(has, l) {
			kept = revision
			continue
		}
		if err == nil && granted {
			err = fail.New("forbidden", "the label "+clean(l, maxGuestText)+" has a connector: only a token with the verb admin may give it", "")
		}
		if err != nil {
			done()
			return "", nil, err
		}
	}
	return kept, done, nil
}

// maxUnnamed bounds how many sprites a message names. The hint names all.
const maxUnnamed = 8

// unnamed says which sprites a grant to a label reaches, and has to name. Other errors it
// returns as they are.
func unnamed(connector string, err error) error {
	e, ok := errors.AsType[*store.UnnamedError](err)
	if !ok {
		return err
	}
	names := strings.Join(e.Unnamed[:min(len(e.Unnamed), maxUnnamed)], ", ")
	if n := len(e.Unnamed) - maxUnnamed; n > 0 {
		names += fmt.Sprintf(" and %d more", n)
	}
	return fail.Newf(sprite.CodeInUse, fmt.Sprintf("if all of them may have it: cove connector grant %s --label %s --reaches %s", connector, shellQuote(e.Label), strings.Join(e.Sprites, ",")),
		"sprites have the label %s already, which any token with the verb write could give them, and the grant does not name them: %s", clean(e.Label, maxGuestText), names)
}

// shellQuote writes a label for a shell.
func shellQuote(label string) string {
	if strings.ContainsFunc(label, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%,=", r))
	}) {
		return "'" + strings.ReplaceAll(label, "'", `'\''`) + "'"
	}
	return label
}
