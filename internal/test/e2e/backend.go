package e2e

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
)

// FarVariable is the variable that has the hosts of tests keep their sprites at a
// backend.
const FarVariable = "COVE_TEST_FAR"

// GoFar gives a host the server of another one as its backend. It reaches that server
// only by the public protocol.
func GoFar(h *Host) {
	h.T.Helper()
	dir := filepath.Join(filepath.Dir(h.Home), "far")
	h.Far = &Host{T: h.T, Bin: h.Bin, Home: filepath.Join(dir, "home"), Data: filepath.Join(dir, "data"), NS: h.NS}
	for _, d := range []string{h.Far.Home, h.Far.Data} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			h.T.Fatal(err)
		}
	}
	h.T.Cleanup(func() {
		if err := EndServer(h.Bin, h.Far.Data, h.Far.Home); err != nil {
			h.T.Errorf("end the far server: %v", err)
		}
	})
	h.Far.Serve(nil)
	c := h.Far.Client()
	h.Far.Change = new(atomic.Pointer[func(*http.Request)])
	filter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if change := h.Far.Change.Load(); change != nil {
			(*change)(r)
		}
		server, err := datafolder.Read(h.Far.Data) // the next one has another address
		target, urlErr := url.Parse(server.URL)
		if err != nil || urlErr != nil {
			panic(http.ErrAbortHandler)
		}
		fakeprovider.ProtocolOnly(h.T, target).ServeHTTP(w, r)
	}))
	h.T.Cleanup(filter.Close)
	h.Env = append(h.Env, "COVE_BACKEND=far", "SPRITES_TOKEN="+c.Token)
	h.Write("home/.config/cove/config.toml", "[backends.far]\nurl = \""+filter.URL+"\"\n")
}
