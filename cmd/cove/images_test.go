package main

import (
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/runtime/gvisor"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// The server writes no image into the reserve of its disk.
func TestRoom(t *testing.T) {
	for reserve, code := range map[int64]string{0: "", math.MaxInt64 / 2: "no_space"} {
		dir := t.TempDir()
		st, err := store.Open(t.Context(), filepath.Join(dir, "cove.db"))
		if err != nil {
			t.Fatal(err)
		}
		logger := slog.New(slog.DiscardHandler)
		host := &sprite.Host{Store: st, Runtime: &gvisor.Runtime{Dir: dir, Logger: logger}, Data: dir, Logger: logger, DiskReserve: reserve}
		if err := host.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = room(host)(1)
		if e, _ := errors.AsType[*fail.Error](err); (e == nil) != (code == "") || e != nil && e.Code != code {
			t.Errorf("with a reserve of %d bytes: %v, want the code %q", reserve, err, code)
		}
		if err := errors.Join(host.Close(), st.Close()); err != nil {
			t.Error(err)
		}
	}
}
