// Package jobtest has an in-process server whose jobs are real. A guest, a supervisor and git
// work as the test's user, in a folder that stands for the home of the sprite's user. The
// test's own program is cove-guest in its sprites.
package jobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/guest/probe"
	"github.com/cove-dev/cove/internal/guest/supervise"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
)

// guestVar makes a test's program act as a guest binary, as far as jobs need one.
const guestVar = "COVE_JOBTEST_GUEST"

const guestName = "cove-guest"

// Bring gives the server of a test a cove-guest, to upload into sprites that have none, as
// those of a backend. It is the test's own program, which acts as one as far as tests of
// executors need it.
func Bring(t testing.TB) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(exe), guestName)
	if err := os.Link(exe, beside); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(beside); err != nil {
			t.Error(err)
		}
	})
}

// In a sprite, the test's program is cove-guest before any test begins.
func init() {
	if os.Getenv(guestVar) != "" || strings.HasPrefix(filepath.Base(os.Args[0]), guestName) {
		os.Exit(guestMain(os.Args[1:]))
	}
}

func guestMain(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := fmt.Errorf("wrong usage: %q", args)
	switch strings.Join(args[:min(2, len(args))], " ") {
	case "version":
		err = nil
	case "job run":
		err = supervise.Run(ctx, args[2], os.Getenv(cove.JobBootVar))
	case "job stop":
		err = supervise.Stop(args[2])
	case "job finalize":
		err = supervise.Finalize(ctx, args[2], args[3])
	case "job send":
		err = supervise.Send(args[2], os.Stdin)
	case "job follow":
		var from int64
		if from, err = strconv.ParseInt(args[3], 10, 64); err == nil {
			err = supervise.Follow(ctx, os.Stdout, args[2], from)
		}
	}
	if len(args) == 2 && args[0] == "answer" {
		err = probe.Answer(ctx, args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return supervise.ExitCode(err)
}

// Start starts a server that has jobs. It ends with the test.
func Start(t testing.TB) *covetest.Server {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	g := &guest.Server{
		Env:  map[string]string{"HOME": home, "PATH": home + "/bin:" + os.Getenv("PATH"), guestVar: "1", "GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull},
		User: strconv.Itoa(os.Getuid()), Workdir: home, Dir: t.TempDir(),
	}
	inside := &moved{t: t, inside: g.Handler(), there: strings.NewReplacer(boot.BinDir+"/cove-guest", exe, boot.Home, home)}
	rt := &covetest.InProcess{Dir: t.TempDir(), Handler: inside}
	t.Cleanup(func() {
		g.Stop(0)
		if err := errors.Join(rt.Close(), g.Close()); err != nil {
			t.Error(err)
		}
	})
	return covetest.Start(t, covetest.Options{Runtime: rt, Jobs: func(st *store.Store, client *cove.Client) (server.Jobs, func() error, error) {
		m := &job.Manager{Store: st, Client: client, Grace: time.Second}
		return m, m.Close, m.Resume(context.WithoutCancel(t.Context()))
	}})
}

// moved has a guest work in another folder than a sprite's home: it replaces the home's path
// in requests.
type moved struct {
	t      testing.TB
	inside http.Handler
	there  *strings.Replacer
}

func (m *moved) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	for _, values := range q {
		for i := range values {
			values[i] = m.there.Replace(values[i])
		}
	}
	r.URL.RawQuery = q.Encode()
	job := r.Method == http.MethodPut && strings.HasSuffix(q.Get("path"), "/job.json")
	if !job && !(r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/fs/rename") || r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/services/")) {
		m.inside.ServeHTTP(w, r)
		return
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the sender is gone
	}
	sent := fmt.Sprint(len(text))
	text = []byte(m.there.Replace(string(text)))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	if !job {
		m.inside.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder() // the recorded answer has the size
	m.inside.ServeHTTP(answer, r)
	w.WriteHeader(answer.Code)
	if _, err := io.WriteString(w, strings.Replace(answer.Body.String(), ":"+fmt.Sprint(len(text)), ":"+sent, 1)); err != nil {
		m.t.Error(err)
	}
}
