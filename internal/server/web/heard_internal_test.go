package web

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// answers is a transport that gives one answer to each request.
type answers []byte

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(a))}, nil
}

// TestRoomForAnswers: sandboxes' answers to a token, and to all tokens, are bounded until
// their requests are over. The owner has room besides.
func TestRoomForAnswers(t *testing.T) {
	list := append(append([]byte(`[{"name":"`), bytes.Repeat([]byte("x"), maxHeard-100)...), `"}]`...)
	site := &Site{API: &http.Client{Transport: answers(list)}, Logger: slog.New(slog.DiscardHandler)}
	open := map[string][]*spriteView{}
	hear := func(token string) error {
		v := &spriteView{view: &view{
			r: httptest.NewRequest(http.MethodGet, "/", nil), site: site, session: Session{Token: token, Owner: token == "owner"},
			api: &cove.Client{Client: &sprites.Client{URL: "http://localhost", HTTPClient: site.API}},
		}, name: "paint"}
		open[token] = append(open[token], v)
		_, err := v.inside().Services(t.Context())
		return err
	}
	for token, most := range map[string]int{"a": tokenWeighs, "b": tokenWeighs} {
		for range most / (byteWeight * maxHeard) {
			if err := hear(token); err != nil {
				t.Fatalf("%s: %v, %d are held", token, err, site.heard.all)
			}
		}
		if err := hear(token); !errors.Is(err, errBusy) {
			t.Errorf("%s, one more than it may: got %v", token, err)
		}
	}
	for {
		if err := hear("c"); err != nil {
			if !errors.Is(err, errBusy) || site.heard.others > othersWeigh {
				t.Errorf("got %v, the tokens hold %d", err, site.heard.others)
			}
			break
		}
	}
	for range 3 {
		if err := hear("owner"); err != nil {
			t.Errorf("the owner: %v, %d are held", err, site.heard.all)
		}
	}
	for _, views := range open {
		for _, v := range views {
			giveBack(v.view)
		}
	}
	if b := &site.heard; b.all != 0 || b.others != 0 || len(b.by) != 0 {
		t.Errorf("at the end %d bytes are held, by %v", b.all, b.by)
	}
}
