package sprite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/sprites"
)

// idle runs when a machine's timer fires: the sandbox is paused, or, if it was so
// long enough, hibernated.
func (l *lifecycle) idle(m *machine, epoch int) {
	now := m.now()
	if now.epoch != epoch {
		return
	}
	var rest time.Duration
	if !now.paused { // nothing has run since
		rest = l.stillAwake(m.name, now.sandbox, now.idle)
	}
	switch m.fallAsleep(epoch, rest, l.network.changes.Load()) {
	case pauses:
		l.pause(m, now.sandbox.(Pauser)) // as fallAsleep has seen: it is used by nobody
	case ends:
		l.logger.Info("sprite sleeps", "sprite", m.name)
		_ = l.endSandbox(m, true) // logged; it is tried again
	}
}

// stillAwake is how long a sandbox that nobody uses must be left alone. A sandbox with
// running commands stays awake, even if nobody is connected to them: otherwise they
// would be paused.
func (l *lifecycle) stillAwake(name string, sb Sandbox, idle time.Duration) time.Duration {
	ctx, cancel := context.WithTimeout(l.tasks.ctx, activityLimit)
	a, err := activity(ctx, sb)
	cancel()
	awakeBy := reasons(a)
	if errors.Is(err, errUnknownCall) {
		awakeBy = append(awakeBy, err.Error()) // what runs in it must not be lost
	} else if err != nil {
		l.logger.Warn("asking a sandbox what runs in it before it sleeps", "sprite", name, "err", err)
	}
	if len(awakeBy) > 0 {
		return idle
	}
	return idle - quiet(a, idle)
}

// errUnknownCall is a guest that was built before the call was.
var errUnknownCall = errors.New("the guest does not know the call")

// maxAnswer bounds the guest's answer.
const maxAnswer = 1 << 20

// activity asks a sandbox what keeps it awake from inside: commands that run,
// though nobody is connected to them, and live tasks. Services do not.
func activity(ctx context.Context, sb Sandbox) (sprites.Activity, error) {
	var a sprites.Activity
	body, err := askGuest(ctx, sb, http.MethodGet, "activity", nil)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return sprites.Activity{}, err
	}
	return a, nil
}

// askGuest makes one call of a sandbox's guest, and returns its answer.
func askGuest(ctx context.Context, sb Sandbox, method, call string, body []byte) ([]byte, error) {
	if sb.Status().Paused {
		return nil, errPaused
	}
	transport := &http.Transport{
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return sb.Dial(ctx, boot.API) },
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://guest/v1/"+call, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token := sb.Status().Token; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		return nil, errUnknownCall
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(answer) > maxAnswer {
		return nil, errors.New("the guest's answer is too long")
	}
	return answer, nil
}

// quiet is how long nothing has run, as far as it matters for a sprite that sleeps
// after idle.
func quiet(a sprites.Activity, idle time.Duration) time.Duration {
	if a.QuietSeconds == nil || *a.QuietSeconds >= idle.Seconds() {
		return idle
	}
	return time.Duration(max(*a.QuietSeconds, 0) * float64(time.Second))
}

// reasons names, for people, what keeps a sprite awake from inside.
func reasons(a sprites.Activity) []string {
	var all []string
	switch {
	case a.Sessions == 1:
		all = append(all, "a command")
	case a.Sessions > 1:
		all = append(all, strconv.Itoa(a.Sessions)+" commands")
	}
	for i, name := range a.Tasks {
		if i == maxTasks {
			break // an honest guest has no more
		}
		if taskRule().MatchString(name) {
			all = append(all, "task "+name)
		}
	}
	return all
}

// maxTasks is how many tasks of a sprite are told.
const maxTasks = 256

// taskRule is what may be a task's name.
var taskRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z._-]{1,63}$`) })
