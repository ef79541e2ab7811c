package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/filesync"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

const (
	watchQuiet = 300 * time.Millisecond // after an event, for others that belong to it
	watchMost  = 2 * time.Second        // the longest wait for that, if something changes all the time
	watchLook  = 30 * time.Second       // without one: events can be lost
	watchRetry = 3 * time.Second        // after the sprite's events have ended
)

// watchSync keeps two folders in step, both ways, until ctx ends. A notification of a
// file system is only a hint: a whole comparison always decides what to copy.
func watchSync(ctx context.Context, inv *invocation, y *filesync.Sync, sprite *sprites.Sprite, policy string) error {
	first := y.Verb
	hints := make(chan struct{}, 1)
	hint := func() {
		select {
		case hints <- struct{}{}:
		default:
		}
	}
	watch := filesync.Watch(ctx, y.Local, hint)
	defer watch.Close()
	told, following := watchTold{inv: inv, sprite: sprite.Name()}, false
	for {
		for _, way := range []filesync.Verb{first, first.Other()} {
			y.Verb = way
			report, err := syncOnce(ctx, inv, y, sprite)
			if ctx.Err() != nil {
				return nil // interrupted, which is how it ends
			}
			y.Reset = false // the first time only
			if err := told.tell(report, err); err != nil {
				return err
			}
		}
		if !following { // now there is a folder to follow
			following = true
			go followSprite(ctx, sprite, y.Remote, hint)
		}
		if err := awaitHint(ctx, hints); err != nil {
			return nil
		}
	}
}

// watchTold is what the person was told about the rounds of a watch. An error that may pass, and
// the files that are held, are told once.
type watchTold struct {
	inv        *invocation
	sprite     string
	said, held string
}

// tell tells what one round did.
func (t *watchTold) tell(r *filesync.Report, err error) error {
	if err == nil {
		news := r.Changes() > 0
		if r.Verb == filesync.Pull {
			now := fmt.Sprint(r.Held)
			news = news || r.Held.Count > 0 && now != t.held
			t.held = now
		}
		if news {
			t.said = ""
			if t.inv.global.json {
				t.inv.printJSON(r)
			} else {
				showSync(t.inv, t.sprite, r, true)
			}
		}
		return nil
	}
	e, ok := errors.AsType[*fail.Error](err)
	if !ok {
		return err
	}
	switch e.Code {
	case filesync.CodeConflict, filesync.CodeChanged, filesync.CodeLost, filesync.CodeNoSpace, filesync.CodeNotFound:
	default:
		return err
	}
	if t.said != e.Message {
		t.said = e.Message
		t.inv.say("cove: %s", printable.Line(e.Message))
		if e.Hint != "" {
			t.inv.say("  hint: %s", printable.Line(e.Hint))
		}
	}
	return nil
}

// awaitHint waits for an event and the quiet after it, or for some time.
func awaitHint(ctx context.Context, hints <-chan struct{}) error {
	timer := time.NewTimer(watchLook)
	defer timer.Stop()
	var latest time.Time // when to go on, quiet or not; zero: before the first event
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hints:
			if latest.IsZero() {
				latest = time.Now().Add(watchMost)
			}
			timer.Reset(min(watchQuiet, time.Until(latest)))
		case <-timer.C:
			return nil
		}
	}
}

// followSprite hints at each change in the sprite, until ctx ends.
func followSprite(ctx context.Context, sprite *sprites.Sprite, dir string, hint func()) {
	for ctx.Err() == nil {
		w, err := sprite.Watch(ctx, sprites.WatchOptions{Recursive: true}, dir)
		for err == nil {
			_, err = w.Next()
			hint()
			if _, lost := errors.AsType[*sprites.WatchError](err); lost {
				err = nil
			}
		}
		if w != nil {
			_ = w.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
			hint() // events may have been missed meanwhile
		}
	}
}
