package image

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	memory "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// pipes is a network in memory: one server.
type pipes struct {
	conns  chan net.Conn
	closed chan bool
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestHanging: a registry that sends nothing for a minute is given up, wherever it is; what
// came before is kept. One that is slow is not.
func TestHanging(t *testing.T) {
	const part = 300_000
	layer := noise(t, "a", 1<<20)
	digest := digestOf(t, layer)
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for what, test := range map[string]struct {
		at    string // the part of the path
		serve func(w http.ResponseWriter, r *http.Request)
		err   string // the code; empty: none
		after time.Duration
		kept  int64
	}{
		"at once":         {"/v2/", hang, "timeout", time.Minute, 0},
		"at the manifest": {"/manifests/", hang, "timeout", time.Minute, 0},
		"at a layer":      {digest, hang, "timeout", time.Minute, 0},
		"in a layer": {digest, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" { // and nothing when it is asked for the rest
				w.Header().Set("Content-Length", fmt.Sprint(1<<20))
				rc, err := layer.Compressed()
				must(t, err)
				defer rc.Close()
				_, _ = io.CopyN(w, rc, part)
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		}, "timeout", 2 * time.Minute, part},
		"slowly": {digest, func(w http.ResponseWriter, _ *http.Request) {
			rc, err := layer.Compressed()
			must(t, err)
			defer rc.Close()
			for {
				time.Sleep(59 * time.Second)
				if n, err := io.CopyN(w, rc, part); n == 0 || err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
			}
		}, "", 4 * 59 * time.Second, 0},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := &pipes{conns: make(chan net.Conn), closed: make(chan bool)}
				inner := memory.New(memory.Logger(log.New(io.Discard, "", 0)))
				var mu sync.Mutex
				begun := false
				server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					now := begun
					mu.Unlock()
					if now && strings.Contains(r.URL.Path, test.at) {
						test.serve(w, r)
						return
					}
					inner.ServeHTTP(w, r)
				})}
				var wg sync.WaitGroup
				wg.Go(func() { _ = server.Serve(network) })
				transport := &http.Transport{DialContext: network.dial}
				defer func() {
					transport.CloseIdleConnections()
					must(t, server.Close())
					wg.Wait()
				}()
				ref, err := name.ParseReference("registry.localhost/x:tag", name.Insecure)
				must(t, err)
				must(t, remote.Push(ref, imageOf(t, layer), remote.WithTransport(transport)))
				s := storeIn(t, t.TempDir(), nil, func(o *Options) { o.Transport = transport })
				mu.Lock()
				begun = true
				mu.Unlock()
				start := time.Now()
				_, err = s.Pull(t.Context(), ref.String(), PullOptions{})
				took := time.Since(start)
				if test.err == "" {
					must(t, err)
				} else {
					wantCode(t, err, test.err, "registry.localhost", "1m0s")
				}
				if took < test.after || took >= test.after+10*time.Second { // of a clock that stands still while anything runs
					t.Errorf("took %v, want %v", took, test.after)
				}
				var kept int64
				for _, path := range namesIn(t, s, partialFolder) {
					kept += s.sizeOf(path)
				}
				if kept != test.kept {
					t.Errorf("kept %d bytes, want %d", kept, test.kept)
				}
			})
		})
	}
}
