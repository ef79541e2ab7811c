package shim

import (
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/cove-dev/cove/internal/shim/gateway"
)

// A sandbox may be gone when its guest is asked to stop. That is an error, but must not end
// the shim, which still has to clean up.
func TestAskAfterTheEnd(t *testing.T) {
	s := newShim(Config{Dir: t.TempDir(), ID: "00112233aabbccdd"}, "", slog.New(slog.DiscardHandler))
	s.network.gw = &gateway.Gateway{}
	s.teardown()
	if err := askToStop(t.Context(), s.network.guest(), 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	s.teardown()
}
