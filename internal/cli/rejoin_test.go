package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// A token that is not valid any more is not tried again: the command ends with the code for that.
func TestComeBackUnauthorized(t *testing.T) {
	refused := fmt.Errorf("sprite paint: %w", &sprites.Error{StatusCode: http.StatusUnauthorized, ErrorBody: sprites.ErrorBody{Code: "unauthorized", Message: "the token is not valid"}})
	synctest.Test(t, func(t *testing.T) {
		inv := newInvocation(Streams{Out: io.Discard, Err: io.Discard})
		began, tries := time.Now(), 0
		_, err := comeBack(t.Context(), inv, absence{pace: new(pace), find: func(context.Context) (*sprites.Sprite, error) { tries++; return nil, refused }})
		if f := classify(err); !errors.Is(err, sprites.ErrUnauthorized) || f.code != "unauthorized" || tries != 1 || time.Since(began) != 0 {
			t.Errorf("after %v and %d tries: %s, %v", time.Since(began), tries, f.code, err)
		}
	})
}

// While a connection is lost, input goes to the function that waits for another connection, and
// not to the command. It does not matter when the command's read began: before the loss, during
// it, or never.
func TestPausedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, person := io.Pipe()
		k := newKeyboard(in)
		keys := k.pausing()
		got := make(chan string)
		read := func() {
			b := make([]byte, 10)
			n, err := keys.Read(b)
			if err != nil {
				t.Error(err)
			}
			got <- string(b[:n])
		}
		press := func(key string) {
			t.Helper()
			if _, err := io.WriteString(person, key); err != nil {
				t.Fatal(err)
			}
		}
		for _, waits := range []bool{true, false} {
			if waits {
				go read()
				synctest.Wait()
			}
			goOn := keys.pause()
			if !waits {
				go read()
			}
			synctest.Wait()
			press("x")
			if meanwhile := string(<-k.typed); meanwhile != "x" {
				t.Errorf("waiting: got %q", meanwhile)
			}
			goOn()
			press("y")
			if typed := <-got; typed != "y" {
				t.Errorf("the command got %q", typed)
			}
		}
		for range 3 {
			keys.pause()()
		}
		go read()
		press("z")
		if typed := <-got; typed != "z" {
			t.Errorf("the command got %q", typed)
		}
		if err := person.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestPace: a connection that lasted is made again at once, and those that end at once are made
// ever more slowly, and for a minute.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inv := newInvocation(Streams{Out: io.Discard, Err: io.Discard})
		found, tries := new(sprites.Sprite), 0
		away := absence{pace: new(pace), find: func(context.Context) (*sprites.Sprite, error) { tries++; return found, nil }}
		for range 3 {
			began := time.Now()
			if sprite, err := comeBack(t.Context(), inv, away); sprite != found || err != nil || time.Since(began) != 0 {
				t.Fatalf("after %v: %v, %v", time.Since(began), sprite, err)
			}
			<-time.After(steady + time.Second) // it lasts
		}
		tries = 0
		began, err := time.Now(), error(nil)
		for err == nil {
			_, err = comeBack(t.Context(), inv, away)
		}
		if took := time.Since(began); !errors.Is(err, errUnsteady) || took < comeBackLimit || took > comeBackLimit+steady || tries > 40 {
			t.Errorf("after %v and %d tries: %v", took, tries, err)
		}
	})
}
