package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// seen is a writer that tells when a text has been written.
type seen struct {
	text string
	told chan struct{}

	mu   sync.Mutex
	have bytes.Buffer
	once sync.Once
}

func (s *seen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have.Write(b)
	if strings.Contains(s.have.String(), s.text) {
		s.once.Do(func() { close(s.told) })
	}
	return len(b), nil
}

// TestImageRmTakesLong: a removal that takes long says which image it is at.
func TestImageRmTakesLong(t *testing.T) {
	errs := &seen{text: "removing debian:12", told: make(chan struct{})}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			_, _ = io.WriteString(w, "{}")
			return
		}
		select {
		case <-errs.told:
			w.WriteHeader(http.StatusNoContent)
		case <-r.Context().Done(): // the test has ended
		}
	}))
	defer s.Close()
	var out bytes.Buffer
	if exit := Main(t.Context(), []string{"image", "rm", "debian:12", "--yes", "--url", s.URL, "--token", "x"}, Streams{In: strings.NewReader(""), Out: &out, Err: errs}); exit != exitOK || !strings.Contains(out.String(), "Removed debian:12") {
		t.Errorf("exit code %d, %q", exit, out.String())
	}
}

// TestCompleteImages: names of images are completed wherever one is asked for, whatever came before.
func TestCompleteImages(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"images":[{"digest":"sha256:a","names":["debian:12"]},{"digest":"sha256:b","names":["alpine:3"]}]}`)
	}))
	defer s.Close()
	for words, want := range map[string]bool{
		"image info de": true, "image rm de": true, "image rm alpine:3 de": true, "image save alpine:3 de": true, "image push de": true,
		"image push alpine:3 de": true, "image tag de": true, "image pull de": true, "create paint --image de": true, "create --image de": true,
		"push plan.md --image de": true, "image info alpine:3 de": false, "image list de": false,
	} {
		for end := time.Now().Add(lastResort); ; {
			var out, errs bytes.Buffer
			began := time.Now()
			args := append([]string{"__complete", "--url", s.URL, "--token", "x"}, strings.Fields(words)...)
			if exit := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs}); exit != exitOK {
				t.Errorf("%s: exit code %d, %s", words, exit, errs.String())
			}
			got := strings.Contains(out.String(), "debian:12")
			if want && !got && time.Since(began) >= completeLimit && began.Before(end) {
				continue // nothing, if the server is slow
			}
			if got != want || strings.Contains(out.String(), "alpine:3\n") {
				t.Errorf("%s: got %q", words, out.String())
			}
			break
		}
	}
}
