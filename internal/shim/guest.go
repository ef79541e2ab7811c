package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/cove-dev/cove/internal/boot"
	"github.com/cove-dev/cove/internal/gateway"
)

// A guestClient calls the guest behind a gateway, each time over a connection of its
// own: one that was kept may be of before a checkpoint.
type guestClient struct {
	http  http.Client
	token func() string
}

func newGuestClient(gw *gateway.Gateway, token func() string) *guestClient {
	return &guestClient{token: token, http: http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return gw.Dial(ctx, boot.Port) },
			MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// call makes a call. read gets what the guest answers, which is hostile.
func (g *guestClient) call(ctx context.Context, method, path string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+g.token())
	resp, err := g.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("the guest answered %s", resp.Status)
	}
	return read(resp.Body)
}

// answered decodes what a guest says, which is hostile: most bytes of it.
func answered[T any](r io.Reader, most int64) (answer T, err error) {
	if err := json.NewDecoder(io.LimitReader(r, most)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("read the guest's answer: %w", err)
	}
	return answer, nil
}

// process looks at what a guest says is a process, and makes its name fit to be shown.
func process(pid int, said string) (name string, err error) {
	name = processName(said)
	if pid < 1 || pid > maxPID || name == "" {
		return "", errors.New("the guest names no process")
	}
	return name, nil
}

// guestToken is what the guest is told to expect, now.
func (s *Shim) guestToken() string { return s.snapshot().Token }
