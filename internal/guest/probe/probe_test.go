package probe_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/probe"
)

func TestRun(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	mux := http.NewServeMux()
	mux.HandleFunc("/fine", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/no", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"type":"error","error":{"type":"authentication_error"}}`)
	})
	mux.HandleFunc("/gateway", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"error":{"code":"no_secret","message":"m"}}`)
	})
	mux.Handle("/away", http.RedirectHandler("/fine", http.StatusFound))
	s := httptest.NewServer(mux)
	defer s.Close()
	var p cove.Probe
	for range 5 { // a slow machine may need longer than an answer may take
		p = probe.Run(t.Context(), []string{s.URL + "/fine", s.URL + "/no", s.URL + "/gateway", s.URL + "/away", "http://127.0.0.1:1/", "::"})
		if !slices.ContainsFunc(p.HTTP, func(a cove.ProbeAnswer) bool { return strings.Contains(a.Error, context.DeadlineExceeded.Error()) }) {
			break
		}
	}
	for i, want := range []struct {
		status int
		code   string
	}{{200, ""}, {401, ""}, {503, "no_secret"}, {302, ""}, {0, ""}, {0, ""}} {
		if a := p.HTTP[i]; a.Status != want.status || a.Code != want.code || (a.Error != "") != (want.status == 0) {
			t.Errorf("%s: %+v", a.URL, a)
		}
	}
	if p.Arch != runtime.GOARCH || time.Since(p.Time).Abs() > 10*time.Minute || p.User == "" || p.Disk.Error != "" || p.Disk.Free == 0 {
		t.Errorf("got %+v", p)
	}
	if left, err := os.ReadDir(home); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
	t.Setenv("HOME", home+"/absent")
	if p := probe.Run(t.Context(), nil); p.Disk.Error == "" {
		t.Error("it wrote into a folder that there is not")
	}
}
