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
	"time"

	"github.com/cove-dev/cove/internal/boot"
	"github.com/cove-dev/cove/internal/store"
	"github.com/cove-dev/cove/sprites"
)

// arm starts the wait for sleep if nothing uses the machine. h.mu is held.
func (h *Host) arm(m *machine) { h.armFor(m, m.idle) }

// armFor is arm when a part of the wait is over.
func (h *Host) armFor(m *machine, wait time.Duration) {
	if len(m.leases) > 0 || m.sandbox == nil || m.busy != nil || m.dead || m.idle == 0 || h.closed {
		return
	}
	m.disarm()
	epoch := m.epoch
	m.timer = time.AfterFunc(wait, func() { h.idle(m, epoch) })
}

// disarm ends the wait for sleep. Host.mu is held.
func (m *machine) disarm() {
	m.epoch++
	if m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
}

// setIdle takes up a changed idle time.
func (h *Host) setIdle(row store.Sprite) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.machines[row.ID]
	if m == nil || m.idle == seconds(row.IdleSeconds) {
		return
	}
	m.idle = seconds(row.IdleSeconds)
	m.disarm()
	h.arm(m)
}

// idle runs when a machine's timer fires. A sandbox in which commands still run,
// though nobody is connected to them, stays awake: ending it would end them.
func (h *Host) idle(m *machine, epoch int) {
	h.mu.Lock()
	if m.epoch != epoch || h.closed {
		h.mu.Unlock()
		return
	}
	sb := m.sandbox
	h.wg.Add(1)
	h.mu.Unlock()
	defer h.wg.Done()

	ctx, cancel := context.WithTimeout(h.ctx, activityLimit)
	a, err := h.activity(ctx, sb)
	cancel()
	awakeBy := reasons(a)
	if errors.Is(err, errUnknownCall) {
		awakeBy = append(awakeBy, err.Error()) // what runs in it must not be lost
	} else if err != nil {
		h.Logger.Warn("asking a sandbox what runs in it before it sleeps", "sprite", m.name, "err", err)
	}

	h.mu.Lock()
	if m.epoch != epoch || h.closed { // used meanwhile
		h.mu.Unlock()
		return
	}
	m.timer = nil
	rest := m.idle
	if len(awakeBy) == 0 {
		rest -= quiet(a, m.idle)
	}
	if rest > 0 {
		h.armFor(m, rest)
		h.mu.Unlock()
		return
	}
	m.beginEnd()
	h.mu.Unlock()
	h.Logger.Info("sprite sleeps", "sprite", m.name)
	_ = h.endSandbox(m, true) // logged; it is tried again
}

// errUnknownCall is a guest that was built before the call was.
var errUnknownCall = errors.New("the guest does not know the call")

// maxAnswer bounds the guest's answer.
const maxAnswer = 1 << 20

// activity asks a sandbox what keeps it awake from inside: commands that run,
// though nobody is connected to them, and live tasks. Services do not.
func (h *Host) activity(ctx context.Context, sb Sandbox) (sprites.Activity, error) {
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
	transport := &http.Transport{
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return sb.Dial(ctx, boot.Port) },
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://guest/v1/"+call, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+sb.Status().Token)
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
	for _, name := range a.Tasks {
		if taskRule.MatchString(name) {
			all = append(all, "task "+name)
		}
	}
	return all
}

// taskRule is what may be a task's name.
var taskRule = regexp.MustCompile(`^[0-9A-Za-z._-]{1,63}$`)
