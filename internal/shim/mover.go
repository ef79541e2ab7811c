package shim

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// A mover is a process of cove-runsc that moves what runs in one container to another,
// step by step. It ends with its orders; the containers do not.
type mover struct {
	cmd     *exec.Cmd
	orders  *os.File
	answers *bufio.Reader
	pipe    *os.File // of the answers
}

// mover starts a mover for the container of r, which does not exist yet.
func (r runsc) mover(from, bundle, image string) (_ *mover, err error) {
	out, err := r.openLog()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	theirs, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	answers, ours, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, orders.Close())
	}
	defer ours.Close()
	// The mover and the container that it makes have its name as an argument: see containers.drop.
	m := &mover{cmd: r.command("move", "--from="+from, "--bundle="+bundle, "--image-path="+image, r.container), orders: orders, answers: bufio.NewReader(answers), pipe: answers}
	m.cmd.Stdout, m.cmd.Stderr = out, out // which the sandbox inherits
	m.cmd.ExtraFiles = []*os.File{theirs, ours}
	group, err := r.enter(m.cmd)
	if err != nil {
		return nil, errors.Join(err, orders.Close(), answers.Close())
	}
	defer group.Close()
	if err := m.cmd.Start(); err != nil {
		return nil, errors.Join(err, orders.Close(), answers.Close())
	}
	return m, nil
}

// do has it take a step: create, pause, save or restore.
func (m *mover) do(step string) error {
	_, err := fmt.Fprintln(m.orders, step)
	if err != nil {
		return fmt.Errorf("runsc move: %s: %w", step, err)
	}
	answer, err := m.answers.ReadString('\n')
	if err != nil {
		return fmt.Errorf("runsc move: %s: it ended: %w", step, err)
	}
	if answer = strings.TrimSpace(answer); answer == "" {
		return nil
	}
	if text, err := strconv.Unquote(answer); err == nil {
		answer = text
	}
	return fmt.Errorf("runsc move: %s: %s", step, lastLines(answer))
}

// kill has it end, and whoever waits for a step hear of that. close must follow.
func (m *mover) kill() { _ = m.cmd.Process.Kill() }

// close has it end, and waits for that. It may be called again.
func (m *mover) close() {
	_, _ = m.orders.Close(), m.pipe.Close()
	m.kill() // whatever it does: each order was carried out, or is undone
	_ = m.cmd.Wait()
}
