package guest

import (
	"context"
	"net/url"
	"os"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest/services"
	"github.com/cove-dev/cove/internal/guest/signals"
	"github.com/cove-dev/cove/sprites"
)

// program is a session that runs the program of a service. It is in no list.
type program struct{ *session }

// serviceProgram prepares the program of a service.
func (s *sessions) serviceProgram(def sprites.Service) (services.Program, error) {
	q := url.Values{"cmd": append([]string{def.Cmd}, def.Args...)}
	for key, value := range def.Env {
		q.Add("env", key+"="+value)
	}
	if def.Dir != "" {
		q.Set("dir", def.Dir)
	}
	if def.User != "" {
		q.Set("user", def.User)
	}
	cmd, err := s.commands.parse(q)
	if err == nil && def.StopSignal != "" {
		cmd.stop, err = signals.Parse(def.StopSignal)
	}
	if err != nil {
		return nil, err
	}
	return program{s.unlistedSession(cmd, "service-"+def.Name)}, nil
}

// Start starts the session, whose only client is out.
func (p program) Start(out services.Output) (pid int, started bool) {
	p.start(programClient{out})
	return p.pid()
}

// Exited is closed when the program itself has ended.
func (p program) Exited() <-chan struct{} { return p.proc.exited }

// End ends the session.
func (p program) End(grace time.Duration) error { return p.end(context.Background(), grace) }

// Signal sends a signal to the program alone, not to its group.
func (p program) Signal(sig syscall.Signal) error {
	pid, ok := p.pid()
	select {
	case <-p.proc.exited: // its number may be someone else's by now
		ok = false
	default:
	}
	if !ok {
		return os.ErrProcessDone
	}
	return os.NewSyscallError("kill", syscall.Kill(pid, sig))
}

// programClient is the client of a service's session.
type programClient struct{ out services.Output }

func (c programClient) output(frame []byte, _ bool) error {
	c.out.Write(sprites.Stream(frame[0]), frame[1:])
	return nil
}

func (c programClient) exit(e ending, _ bool) { c.out.Exit(e.code, e.reason) }
func (c programClient) crowded(bool)          {}
func (c programClient) followPorts(*session)  {}
func (c programClient) drop()                 { c.out.Exit(125, "") } // without an exit: the guest is closing
