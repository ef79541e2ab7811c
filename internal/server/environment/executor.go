// Package environment makes, finds, watches and destroys the sprites that are made for jobs:
// environments. Their rows are in the store (store.Environments), and change by
// compare-and-swap.
//
// An Executor does that at one place: this server, or a backend (place.go). The Keeper
// (keeper.go) keeps the rows true. It stores a row before it asks the row's place. An outage
// makes an environment unknown. An environment is gone only if its place has said so. The
// package environmenttest has the tests that each executor passes.
package environment

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// Executor makes, finds and destroys the sprites of environments at one place. Its methods
// may be called from any goroutine. No method changes a row.
//
// An error that wraps ErrGone or ErrForeign says that the environment's sprite is not there.
// Any other error does not say whether it is there.
type Executor interface {
	// Provision makes the sprite of an environment. If an earlier call has made one, and its
	// answer was lost, Provision takes that one. An error that does not wrap ErrUnclear says
	// that this call has made none, and that no other will.
	Provision(ctx context.Context, env cove.Environment, plan Plan) (Status, error)

	// Attach returns the sprite, if it is there. It does not wake it; its next use does.
	Attach(ctx context.Context, env cove.Environment) (*sprites.Sprite, error)

	// Suspend has the sprite sleep. Without Capabilities.Suspend it is errors.ErrUnsupported.
	Suspend(ctx context.Context, env cove.Environment) error

	// Destroy deletes the sprite. It returns nil if the place says that it is gone, and never
	// touches one that is not the environment's: that is ErrForeign. It needs a valid reason.
	Destroy(ctx context.Context, env cove.Environment, reason cove.DestroyReason) error

	// Status looks at the sprite, and does not wake it.
	Status(ctx context.Context, env cove.Environment) (Status, error)

	// List looks at all sprites at the place that this server has made for jobs, in one list
	// of several pages. It wakes none.
	List(ctx context.Context) ([]Status, error)

	// Remove deletes a sprite that List has returned, and that no environment has. It checks the
	// sprite first: if it is another one by now, or does not have our mark, the error is
	// ErrForeign. If the sprite is gone, there is no error.
	Remove(ctx context.Context, sprite Status) error

	// Capabilities says what can be done at the place beyond the protocol.
	Capabilities(ctx context.Context) (Capabilities, error)
}

// Plan is what the sprite of an environment is made with. A place leaves out that for which
// it has no Capabilities.
type Plan struct {
	Config  *sprites.Config
	Policy  *sprites.NetworkPolicy
	Include []string
	Install string // the key of an agent's installation; one that is not there is sprites.ErrNotFound
	Lease   time.Duration

	// Asked says that an earlier call has asked for the sprite, and that its answer is not known.
	Asked bool
}

// Capabilities are functions that not all places have.
type Capabilities struct {
	Suspend bool // an environment can be made to sleep
	Policy  bool // the policy of a Plan is in force when the sprite is there; else it must be set then
	Install bool // agents are installed before, for all
	Include bool // sprites can have folders of the host
}

// Status is what a place says of a sprite.
type Status struct {
	Name      string
	SpriteID  string
	State     cove.EnvironmentState // ready or asleep
	Said      sprites.Status        // the place's own word
	CreatedAt time.Time
	Job       string // that a sprite of List was made for, or is another's now

	// Late says of a sprite that Provision has made that the place was asked for it more than once.
	// If the sprite is deleted soon, another one may come.
	Late bool
}

// Errors of executors.
var (
	ErrGone    = errors.New("its sprite is not there")
	ErrForeign = errors.New("another sprite has its name")
	ErrUnclear = errors.New("its sprite may have been made")
	ErrReason  = errors.New("an environment is destroyed only for a known reason")
)

// Error codes that do not pass by waiting. tooManySprites is a service's: the account has as
// many sprites as it may have. The others are this server's own, for backends and sprites.
const (
	backendRefused = "backend_refused"
	tooManySprites = "concurrent_sprite_limit_exceeded"
	diskLimit      = "disk_limit"
	diskFull       = "disk_full"
)

// Passing reports whether a call that failed may succeed later: nobody answered, or a server
// that is overloaded or out of order. A refusal stays one.
func Passing(err error) bool {
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		switch {
		case e.Code == backendRefused, e.Code == tooManySprites, e.Code == diskLimit, e.Code == diskFull, e.StatusCode == http.StatusNotImplemented:
			return false
		}
		return e.StatusCode == http.StatusTooManyRequests || e.StatusCode >= http.StatusInternalServerError
	}
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, sprites.ErrNoExit)
}

// Unheard reports whether an error of a call to a place says nothing about a sprite. The place
// did not answer, or refused our token.
func Unheard(err error) bool {
	e, ok := errors.AsType[*sprites.Error](err)
	refused := ok && (e.Code == backendRefused || e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden)
	return refused || Passing(err)
}
