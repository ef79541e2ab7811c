package acp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"

	acp "github.com/coder/acp-go-sdk"
	"golang.org/x/sys/unix"
)

// Permissions says how an agent's requests for permission are answered.
type Permissions string

// The choices. The sandbox is the boundary, so that Allow is safe for the host.
const (
	Allow Permissions = "allow" // granted, each time anew
	Ask   Permissions = "ask"   // a person is asked, and waited for
	Deny  Permissions = "deny"  // rejected, each time anew
)

// ParsePermissions reads a choice; empty is Allow.
func ParsePermissions(text string) (Permissions, error) {
	switch p := Permissions(text); p {
	case "":
		return Allow, nil
	case Allow, Ask, Deny:
		return p, nil
	}
	return "", fmt.Errorf("%q is not allow, ask or deny", text)
}

const (
	maxOptions = 20
	maxLabel   = 200 // bytes of an option's name
)

// RequestPermission is session/request_permission.
func (r *runner) RequestPermission(ctx context.Context, p acp.RequestPermissionRequest) (acp.RequestPermissionResponse, error) {
	ev := r.question(p)
	var chosen int
	switch r.job.Permissions {
	case Ask:
		chosen = r.ask(ctx, ev)
	case Deny:
		chosen = choose(p.Options, acp.PermissionOptionKindRejectOnce, acp.PermissionOptionKindRejectAlways)
	default:
		// Once: a lasting one may be written into the agent's settings in the repository.
		chosen = choose(p.Options, acp.PermissionOptionKindAllowOnce, acp.PermissionOptionKindAllowAlways)
	}
	done := Event{Type: "permission", ID: ev.ID, Title: ev.Title, Status: "cancelled"}
	if chosen < 0 || chosen >= len(p.Options) {
		if r.job.Permissions == Deny {
			done.Status = "denied"
		}
		r.events.add(done)
		return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeCancelled()}, nil
	}
	option := p.Options[chosen]
	done.Status, done.Option = "denied", short(option.Name, maxLabel)
	if option.Kind == acp.PermissionOptionKindAllowOnce || option.Kind == acp.PermissionOptionKindAllowAlways {
		done.Status = "allowed"
	}
	r.events.add(done)
	return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeSelected(option.OptionId)}, nil
}

// question is what a person is asked.
func (r *runner) question(p acp.RequestPermissionRequest) Event {
	var t toolCall
	if text, err := json.Marshal(p.ToolCall); err == nil {
		_ = json.Unmarshal(text, &t) // what was encoded can be decoded
	}
	r.mu.Lock()
	r.asked++
	ev := Event{Type: "permission_request", ID: strconv.Itoa(r.asked)}
	about, left := r.calls.fill(t).event()
	r.mu.Unlock()
	ev.Call, ev.Title, ev.Kind, ev.Text, ev.Left = about.ID, about.Title, about.Kind, about.Text, left
	if len(about.Paths) > 0 {
		ev.Paths = about.Paths[:1]
	}
	for i, o := range p.Options[:min(len(p.Options), maxOptions)] {
		ev.Options = append(ev.Options, Option{ID: strconv.Itoa(i + 1), Name: short(o.Name, maxLabel), Kind: short(string(o.Kind), 40)})
	}
	return ev
}

// choose finds the first option of a kind, in the order of the kinds; -1: none is.
func choose(options []acp.PermissionOption, kinds ...acp.PermissionOptionKind) int {
	for _, kind := range kinds {
		if i := slices.IndexFunc(options, func(o acp.PermissionOption) bool { return o.Kind == kind }); i >= 0 {
			return i
		}
	}
	return -1
}

// ask lets a person choose, and returns the index of the option. It returns -1 if nobody can
// choose, or the agent takes its question back.
func (r *runner) ask(ctx context.Context, question Event) int {
	r.asking.Lock()
	defer r.asking.Unlock()
	if r.job.Answers == nil || ctx.Err() != nil || len(question.Options) == 0 {
		return -1
	}
	r.events.add(question)
	for {
		select {
		case a, open := <-r.answers:
			if !open {
				return -1
			}
			i := slices.IndexFunc(question.Options, func(o Option) bool { return o.ID == a.Option })
			if a.ID == question.ID && i >= 0 {
				return i
			}
			r.events.add(Event{Type: "notice", Text: "ignored an answer to another question"})
		case <-ctx.Done():
			return -1
		case <-r.stopped:
			return -1
		}
	}
}

// readAnswers reads people's answers. An answer that no question waits for stays until the
// next question, which then passes over it.
func (r *runner) readAnswers() {
	defer close(r.answers)
	in := bufio.NewScanner(r.job.Answers)
	for in.Scan() {
		var a Answer
		if json.Unmarshal(in.Bytes(), &a) != nil {
			continue
		}
		select {
		case r.answers <- a:
		case <-r.conn.Done():
			return
		}
	}
}

func setCloseOnExec(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, unix.FD_CLOEXEC)
	return err
}
