package gitwork

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"
)

// slowPerson reads nothing until the channel is closed.
type slowPerson struct {
	begins <-chan struct{}
	read   bytes.Buffer
}

func (p *slowPerson) Write(text []byte) (int, error) {
	<-p.begins
	return p.read.Write(text)
}

// TestShownSlowly: a person who reads slowly, in a pager say, reads all. If they read nothing any
// more, the verb can be interrupted.
func TestShownSlowly(t *testing.T) {
	const delay = time.Millisecond
	command := func(ctx context.Context, person *slowPerson) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "echo", "all of it")
		cmd.Stdout, cmd.WaitDelay = person, delay
		return cmd
	}
	begins := make(chan struct{})
	time.AfterFunc(100*delay, func() { close(begins) })
	person := &slowPerson{begins: begins}
	if err := runShown(t.Context(), command(t.Context(), person)); err != nil || person.read.String() != "all of it\n" {
		t.Errorf("got %q, %v", person.read.String(), err)
	}

	never := make(chan struct{})
	defer close(never)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*delay, cancel)
	if err := runShown(ctx, command(ctx, &slowPerson{begins: never})); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
