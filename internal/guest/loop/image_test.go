package loop_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/guest/loop"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// pictureOf is a PNG file.
func pictureOf(t testing.TB, width, height int) string {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// read1 is a turn that reads a file.
func read1(name string) modeltest.Turn { return turn("", call("Read", object{"file_path": name})) }

// shown is how an image appears in a request of an API.
func shown(provider, file string) string {
	data := base64.StdEncoding.EncodeToString([]byte(file))
	switch provider {
	case "anthropic":
		return `"data":"` + data + `"`
	case "openai":
		return `"image_url":"data:image/png;base64,` + data + `"`
	}
	return `"inlineData":{"data":"` + data + `"`
}

// TestImage: a model that reads an image gets it, with the result that it belongs to. A
// resumed session still has it.
func TestImage(t *testing.T) {
	file := pictureOf(t, 20, 10)
	each(t, func(t *testing.T, provider string) {
		b := set(t, provider, "full", script{turns: []modeltest.Turn{read1("shot"), turn("Grey."), turn("Still grey.")}})
		b.write("shot", file)
		dir := t.TempDir()
		var err error
		if b.Session, err = loop.NewSession(dir, provider); err != nil {
			t.Fatal(err)
		}
		first := b.run(loop.Done)
		if err := b.Session.Close(); err != nil {
			t.Fatal(err)
		}
		if r := b.model.Requests()[1]; !strings.Contains(string(r.Body), shown(provider, file)) || !strings.Contains(string(r.Body), "20 × 10 pixels") {
			t.Errorf("the model is shown %.2000s", r.Body)
		}
		if events := b.events.String(); strings.Contains(events, base64.StdEncoding.EncodeToString([]byte(file))) || !strings.Contains(events, "is an image") {
			t.Errorf("the events are %s", events)
		}

		s, err := loop.ResumeSession(dir, first.Session, provider)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		again := &loop.Loop{Provider: b.Provider, Model: b.Model, Tools: b.Tools, Session: s}
		if r, err := again.Run(t.Context(), "and now?"); err != nil || r.Text != "Still grey." {
			t.Fatalf("%+v, %v", r, err)
		}
		if r := b.model.Requests()[2]; !strings.Contains(string(r.Body), shown(provider, file)) {
			t.Errorf("the model of a session that goes on is shown %.2000s", r.Body)
		}
	})
}

// TestImageRefused: an API that takes no images is asked again without them. It is not asked
// for ever.
func TestImageRefused(t *testing.T) {
	file := pictureOf(t, 20, 10)
	each(t, func(t *testing.T, provider string) {
		for _, refusals := range []int{1, 2} {
			model := servers[provider].make(script{turns: []modeltest.Turn{read1("shot"), turn("I can't see it.")}})
			b := set(t, provider, "full", script{})
			p, err := loop.Open(provider, loop.Access{BaseURL: serve(t, &blind{scripted: model, left: refusals}) + servers[provider].path, Key: key}, func(string) string { return "" })
			if err != nil {
				t.Fatal(err)
			}
			b.Provider = p
			b.write("shot", file)
			want := loop.Done
			if refusals > 1 {
				want = loop.Unanswered
			}
			b.run(want)
			if trims := b.of("trim"); len(trims) != 1 || !strings.Contains(trims[0].Text, "left out 1 of the images") || !strings.Contains(trims[0].Text, "no images here") {
				t.Errorf("the events of leaving out: %+v", trims)
			}
			all := model.Requests()
			if last := string(all[len(all)-1].Body); refusals == 1 && (strings.Contains(last, base64.StdEncoding.EncodeToString([]byte(file))) || !strings.Contains(last, "The image is left out")) {
				t.Errorf("the last request is %.2000s", last)
			}
		}
	})
}

// TestManyImages: the oldest of many images are left out, the newest are not.
func TestManyImages(t *testing.T) {
	const count = 20
	each(t, func(t *testing.T, provider string) {
		var turns []modeltest.Turn
		for i := range count {
			turns = append(turns, read1(fmt.Sprint("shot", i)))
		}
		b := set(t, provider, "full", script{turns: append(turns, turn("Seen."))})
		for i := range count {
			b.write(fmt.Sprint("shot", i), pictureOf(t, 20+i, 10))
		}
		b.run(loop.Done)
		if len(b.of("trim")) != 1 {
			t.Errorf("the events are %s", b.types())
		}
		for n, r := range b.model.Requests() {
			var has []int
			for i := range n {
				if strings.Contains(string(r.Body), shown(provider, pictureOf(t, 20+i, 10))) {
					has = append(has, i)
				}
			}
			if len(has) > 16 || n > 0 && (len(has) == 0 || has[len(has)-1] != n-1) {
				t.Errorf("request %d has the images %v", n, has)
			}
		}
	})
}

// blind is a model's API that refuses a number of requests, from the first one with an image
// on.
type blind struct {
	scripted

	left int
	seen bool
}

func (b *blind) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.seen = b.seen || bytes.Contains(body, []byte("iVBORw0KGgo")) // a PNG in base64
	if b.seen && b.left > 0 {
		b.left--
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"type":"error","error":{"type":"invalid_request_error","code":400,"status":"INVALID_ARGUMENT","message":"no images here"}}`)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	b.scripted.ServeHTTP(w, r)
}
