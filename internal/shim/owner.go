package shim

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode"

	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// Bounds on the guest's answers about its processes: bytes of an answer, length of
// a process's name, and a process number. Linux itself gives 15 bytes of a name.
const (
	maxOwnerAnswer = 1 << 10
	maxProcessName = 32
	maxPID         = 1 << 22
)

// ownerOf asks the guest which process has a socket.
func ownerOf(guest *guestClient) func(context.Context, policy.Proto, netip.AddrPort) (gateway.Process, error) {
	return func(ctx context.Context, proto policy.Proto, from netip.AddrPort) (gateway.Process, error) {
		q := url.Values{"protocol": {string(proto)}, "from": {from.String()}}
		var p gateway.Process
		err := guest.call(ctx, http.MethodGet, "/v1/owner?"+q.Encode(), func(r io.Reader) (err error) {
			p, err = readOwner(r)
			return err
		})
		return p, err
	}
}

// readOwner reads what a guest says, which is hostile.
func readOwner(r io.Reader) (gateway.Process, error) {
	p, err := answered[sprites.Process](r, maxOwnerAnswer)
	if err != nil {
		return gateway.Process{}, err
	}
	name, err := process(p.PID, p.Name)
	if err != nil {
		return gateway.Process{}, err
	}
	return gateway.Process{Name: name, PID: p.PID}, nil
}

// processName is a name that a guest has given a process, fit to be shown.
func processName(said string) string {
	name := strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) || c == unicode.ReplacementChar {
			return '?'
		}
		return c
	}, said)
	if short := []rune(name); len(short) > maxProcessName {
		name = string(short[:maxProcessName])
	}
	return name
}
