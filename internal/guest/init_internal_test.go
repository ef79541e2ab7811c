package guest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cove-dev/cove/internal/guest/services"
	"github.com/cove-dev/cove/internal/lib/boot"
)

// TestServicesAreThereFirst: the first caller of a guest that has just begun finds all
// services, however many there are.
func TestServicesAreThereFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "services")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{"web"}
	for i := range services.Max - 1 {
		names = append(names, "s"+strconv.Itoa(i))
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(`{"cmd":"true","stopped":true}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ln, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Token: "secret", User: strconv.Itoa(os.Getuid()), Dir: filepath.Dir(dir)}
	ctx, cancel := context.WithCancel(t.Context())
	lived := make(chan error, 1)
	go func() { lived <- s.live(ctx, ln) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/v1/services/web", ln.Addr()), nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			err = boot.GreetWithin(ctx.Done(), conn, "secret")
		}
		return conn, err
	}}
	resp, err := transport.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the first call gave %v, %v", resp, err)
	} else if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-lived; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
