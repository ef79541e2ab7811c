package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
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
		a := &app{Streams: Streams{Out: io.Discard, Err: io.Discard}}
		a.newRoot()
		began, tries := time.Now(), 0
		_, err := a.comeBack(t.Context(), absence{find: func(context.Context) (*sprites.Sprite, error) { tries++; return nil, refused }})
		if f := classify(err); !errors.Is(err, sprites.ErrUnauthorized) || f.code != "unauthorized" || tries != 1 || time.Since(began) != 0 {
			t.Errorf("after %v and %d tries: %s, %v", time.Since(began), tries, f.code, err)
		}
	})
}

// What a replay repeats is not written twice, and what it lacks is noticed.
func TestResumed(t *testing.T) {
	var b bytes.Buffer
	r := resumed{w: &b}
	write := func(text string) {
		for i := range len(text) {
			if n, err := r.Write([]byte(text[i : i+1])); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	write("abcdef")
	if !r.replay(2) {
		t.Error("nothing is missing, and it says so")
	}
	write("cd") // and cut again
	if !r.replay(0) {
		t.Error("nothing is missing, and it says so")
	}
	write("abcdefgh")
	if !r.replay(8) {
		t.Error("nothing is missing, and it says so")
	}
	write("ij")
	if r.replay(12) {
		t.Error("two bytes are missing")
	}
	if n, err := r.Write([]byte("mn")); n != 2 || err != nil {
		t.Error(n, err)
	}
	if !r.replay(10) {
		t.Error("nothing more is missing")
	}
	if n, err := r.Write([]byte("klmnop")); n != 6 || err != nil {
		t.Error(n, err)
	}
	if !r.replay(math.MinInt64) || r.skip != r.at {
		t.Errorf("from before the beginning, %d of %d bytes are passed over", r.skip, r.at)
	}
	if got, want := b.String(), "abcdefghijmnop"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
