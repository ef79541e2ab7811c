package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// A grant to a label reaches every sprite that has the label. So a token without the verb
// admin may not give a label that has a grant. A new grant names the sprites that have the
// label already (store.Connectors.Grant).

// labelRights decides who may give a sprite a label. It counts, for each label, the calls
// without the verb admin that are about to give it. Such a call has looked whether the label
// has a grant, and its sprite is not stored yet.
type labelRights struct {
	connectors *store.Connectors
	host       *sprite.Host

	mu    sync.Mutex                // held while a connector is granted to a label
	calls map[string]map[string]int // by label, and by the token's name
}

// begin counts a call. The caller must call done when its sprite is stored, or will not be.
func (l *labelRights) begin(token string, labels []string) (done func()) {
	add := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.calls == nil {
			l.calls = map[string]map[string]int{}
		}
		for _, label := range labels {
			by := l.calls[label]
			if by == nil {
				by = map[string]int{}
				l.calls[label] = by
			}
			if by[token] += n; by[token] == 0 {
				delete(by, token)
			}
			if len(by) == 0 {
				delete(l.calls, label)
			}
		}
	}
	add(1)
	return sync.OnceFunc(func() { add(-1) })
}

// grant calls store, unless a call is about to give the label. Calls that begin meanwhile
// wait, and find the grant.
func (l *labelRights) grant(label string, store func() error) error {
	if label == "" {
		return store()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for token := range l.calls[label] {
		return fail.New(sprite.CodeInUse, "the token "+clean(token, maxGuestText)+", which does not have the verb admin, is giving a sprite the label "+clean(label, maxGuestText)+" just now",
			"try again when that is done: a grant to a label names the sprites that have it; if it lasts, find the token, and delete it: COVE_TOKEN= cove token list")
	}
	return store()
}

// mayGive refuses labels that would give a sprite a connector, if the caller may not grant
// that connector. The sprite called name keeps the labels that it has; without a name, the
// labels are a new sprite's. If the answer rests on the sprite's labels, kept is its revision.
// The caller must call done when the labels are stored, or will not be.
func (l *labelRights) mayGive(r *http.Request, name string, labels []string) (kept string, done func(), err error) {
	if err := sprite.CheckLabels(labels); err != nil { // before each is looked up
		return "", nil, err
	}
	p := principalOf(r)
	if p.may(admin) {
		return "", func() {}, nil
	}
	done = l.begin(p.name, labels)
	var has []string
	var revision string
	if name != "" {
		if has, revision, err = sprite.Labels(r.Context(), l.host, name); err != nil {
			done()
			return "", nil, err
		}
	}
	for _, label := range labels {
		granted, err := l.connectors.Labelled(r.Context(), label)
		if err == nil && granted && slices.Contains(has, label) {
			kept = revision
			continue
		}
		if err == nil && granted {
			err = fail.New("forbidden", "the label "+clean(label, maxGuestText)+" has a connector: only a token with the verb admin may give the label to a sprite", "")
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
	return fail.Newf(sprite.CodeInUse, fmt.Sprintf("if all of them may have it: cove connector grant %s --label %s --reaches %s", connector, printable.Word(e.Label), strings.Join(e.Sprites, ",")),
		"sprites have the label %s already (any token with the verb write could have given it), and the grant does not name them: %s", clean(e.Label, maxGuestText), names)
}
