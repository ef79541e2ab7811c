package gitwork

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// slowPerson reads nothing before its program has ended. It then calls begins.
type slowPerson struct {
	program *exec.Cmd
	begins  func()
	read    bytes.Buffer
}

func (p *slowPerson) Write(text []byte) (int, error) {
	for syscall.Kill(p.program.Process.Pid, 0) == nil {
		<-time.After(time.Millisecond)
	}
	p.begins()
	return p.read.Write(text)
}

// TestShownSlowly: a person who reads slowly, in a pager say, reads all. If they read nothing any
// more, the verb can be interrupted.
func TestShownSlowly(t *testing.T) {
	const delay, lastResort = time.Millisecond, 2 * time.Minute
	shown := func(ctx context.Context, begins func()) (*slowPerson, error) {
		cmd := exec.CommandContext(ctx, "echo", "all of it")
		person := &slowPerson{program: cmd, begins: begins}
		cmd.Stdout, cmd.WaitDelay = person, delay
		ended := make(chan error, 1)
		go func() { ended <- runShown(ctx, cmd) }()
		select {
		case err := <-ended:
			return person, err
		case <-time.After(lastResort):
			t.Fatal("it does not end")
			return nil, nil
		}
	}
	if person, err := shown(t.Context(), func() { <-time.After(100 * delay) }); err != nil || person.read.String() != "all of it\n" {
		t.Errorf("got %q, %v", person.read.String(), err)
	}

	never := make(chan struct{})
	defer close(never)
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := func() {
		cancel()
		<-never
	}
	if _, err := shown(ctx, interrupted); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
