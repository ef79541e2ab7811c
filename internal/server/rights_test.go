package server_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// stream is something open: read waits for more of it.
type stream struct {
	what string
	read func() error
}

// ended reads streams to their end, which must come at once.
func ended(t *testing.T, streams []stream) {
	t.Helper()
	ends := make(chan string, len(streams))
	for _, st := range streams {
		go func() {
			for st.read() == nil {
			}
			ends <- st.what
		}()
	}
	left := map[string]bool{}
	for _, st := range streams {
		left[st.what] = true
	}
	late := time.After(lastResort)
	for len(left) > 0 {
		select {
		case what := <-ends:
			delete(left, what)
		case <-late:
			t.Fatalf("still open: %v", left)
		}
	}
}

func (w *site) socket(t *testing.T, s *covetest.Server, h http.Header) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), s.URL+"/socket", &websocket.DialOptions{Host: "paint.localhost", HTTPHeader: h})
	must(t, err)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

func ofSocket(t *testing.T, what string, conn *websocket.Conn) stream {
	return stream{what, func() error {
		_, _, err := conn.Read(t.Context())
		return err
	}}
}

// echoes says whether a URL's WebSocket is still open.
func echoes(t *testing.T, conn *websocket.Conn) bool {
	t.Helper()
	must(t, conn.Write(t.Context(), websocket.MessageText, []byte("hello")))
	_, p, err := conn.Read(t.Context())
	return err == nil && string(p) == "echo hello"
}

// TestTokenEnds: everything that a token has opened ends with it, when it is deleted and when
// it expires. Nothing else ends.
func TestTokenEnds(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	addJob(t, s, "abcdef", "paint")
	port := listenPort(t, echo)
	owners := w.socket(t, s, http.Header{"Authorization": {"Bearer " + s.Token}})

	openAll := func(secret string) (all []stream) {
		h, by := http.Header{"Authorization": {"Bearer " + secret}}, bearer(cove.Token{Secret: secret})
		for _, path := range []string{"exec?cmd=cat&stdin=true", "ports/watch", "fs/watch", "proxy"} {
			conn, _, err := websocket.Dial(t.Context(), s.URL+"/v1/sprites/paint/"+path, &websocket.DialOptions{HTTPHeader: h})
			must(t, err)
			t.Cleanup(func() { _ = conn.CloseNow() })
			if path == "proxy" {
				must(t, conn.Write(t.Context(), websocket.MessageText, []byte(initOf(t, "localhost", port))))
			}
			all = append(all, ofSocket(t, path, conn))
		}
		for _, what := range []string{
			"GET /v1/sprites/paint/services/web/logs?duration=1000h", "POST /v1/sprites/paint/exec?cmd=sleep&cmd=1000", "GET /v1/jobs/abcdef/events?follow=true",
		} {
			body := open(t, s, what, "", by).Body
			all = append(all, stream{what, func() error {
				_, err := body.Read(make([]byte, 100))
				return err
			}})
		}
		all = append(all, ofSocket(t, "the URL", w.socket(t, s, h)))
		v, err := (&cove.Client{Client: &sprites.Client{URL: s.URL, Token: secret}}).Visit(t.Context(), "paint", sprites.VisitRequest{})
		must(t, err)
		link, err := url.Parse(v.URL)
		must(t, err)
		cookie, _, _ := strings.Cut(ask(t, s, "GET "+link.RequestURI(), "", at("paint"), without).Header.Get("Set-Cookie"), ";")
		conn := w.socket(t, s, http.Header{"Cookie": {cookie}})
		failIf(t, !echoes(t, conn), "by a cookie nothing comes back")
		return append(all, ofSocket(t, "the URL by a cookie", conn))
	}

	tok := token(t, s, cove.TokenScope{Sprite: "paint"}, "read", "exec")
	begun := time.Now()
	all := openAll(tok.Secret)
	opening := time.Since(begun)
	must(t, s.Client().DeleteToken(t.Context(), tok.ID))
	ended(t, all)

	expires := time.Now().Add(25*time.Second + 20*opening) // not before all are open, although a process stands still for 20 s
	must(t, s.Store.Tokens.Create(t.Context(), store.Token{
		ID: "short", Hash: store.HashToken("cove_short"), Scope: cove.TokenScope{Sprite: "paint"}, Verbs: []string{"read", "exec"},
		CreatedAt: time.Now(), ExpiresAt: expires,
	}))
	all = openAll("cove_short")
	<-time.After(time.Until(expires))
	ended(t, all)
	failIf(t, !echoes(t, owners), "the owner's WebSocket has ended, too")
}

// TestTokenEndsUnread: a client that does not read its answer does not put off the end of its
// token.
func TestTokenEndsUnread(t *testing.T) {
	s, _ := hostile(t, func(w http.ResponseWriter, _ *http.Request) { raw(w, "HTTP/1.1 200 OK\r\n\r\nendless") })
	tok := token(t, s, cove.TokenScope{Sprite: "evil"}, "read", "write")
	resp := open(t, s, "GET /v1/sprites/evil/fs/read?path=/a", "", bearer(tok))
	_, err := io.ReadFull(resp.Body, make([]byte, 1<<20))
	must(t, err)
	must(t, s.Client().DeleteToken(t.Context(), tok.ID))
	eventually(t, s, "evil", func(i sprites.Info) bool { return len(i.Cove.AwakeBy) == 0 })
}

// TestPublicEnds: everything that strangers have open at a URL ends when it is no longer
// public.
func TestPublicEnds(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	insider := w.socket(t, s, http.Header{"Authorization": {"Bearer " + s.Token}})
	public(t, s, "paint", "public")
	stranger := w.socket(t, s, nil)
	_, err := s.Client().Update(t.Context(), "paint", sprites.UpdateRequest{Labels: &[]string{"red"}})
	failIf(t, err != nil || !echoes(t, stranger), "another change ends it, or %v", err)
	public(t, s, "paint", "sprite")
	ended(t, []stream{ofSocket(t, "the URL", stranger)})
	failIf(t, !echoes(t, insider), "who has a token is cut off, too")
}
