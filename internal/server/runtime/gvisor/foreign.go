package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/cove-dev/cove/internal/shim"
)

// takeUpOwn is takeUp, but for a sandbox that is foreign: that has ended when it returns.
func (r *Runtime) takeUpOwn(ctx context.Context, id string) (shim.State, error) {
	st, err := r.takeUp(ctx, id)
	if err != nil || !r.foreign(st) {
		return st, err
	}
	if err := r.bringHome(ctx, id, st); err != nil {
		return st, err
	}
	return st, errGone
}

// foreign reports whether a sandbox runs in a user namespace that is not this server's,
// which can't look after such a sandbox. It is the case if holders died in turn, and none
// could join what lived.
func (r *Runtime) foreign(st shim.State) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", st.PID))
	return r.UserNS && errors.Is(err, fs.ErrPermission)
}

const (
	foreignSave = 2 * time.Minute
	foreignStop = 30 * time.Second
)

// bringHome ends a foreign sandbox. Its shim, which is in the sandbox's namespace, puts its
// memory on disk before, so that the next use goes on in this server's namespace; if that
// fails, the sprite begins anew.
func (r *Runtime) bringHome(ctx context.Context, id string, st shim.State) error {
	s := r.follow(id, st)
	saving, cancel := context.WithTimeout(ctx, foreignSave)
	defer cancel()
	err := s.Hibernate(saving)
	if err != nil {
		stopping, cancel := context.WithTimeout(ctx, foreignStop)
		defer cancel()
		if err := s.Stop(stopping, 0); err != nil {
			return fmt.Errorf("end a sandbox of another user namespace: %w", err)
		}
	}
	r.Logger.Warn("a sandbox of another user namespace was ended", "sandbox", id, "saved", err == nil, "err", err)
	return nil
}
