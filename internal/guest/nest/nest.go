// Package nest runs a program as root of a network of its own inside the sprite.
//
// Programs in a sprite lack CAP_NET_ADMIN and CAP_NET_RAW, because with them they could
// take the guest's place. Docker needs both: it makes bridges, and rules of iptables. So
// it runs in a nest: a user namespace that has all users, with a network and mounts of its
// own. There it is root over the network, and nowhere else.
//
// A nest has no link to the sprite's network. A relay (relay.go) joins the two. Rules of
// iptables lead each TCP connection that would leave the nest to the relay. The relay connects
// to the same address from a socket of the sprite. So the sprite's policy holds, and no packet
// of a nest leaves the sandbox. Requests to name servers (UDP, port 53) go the same way. A
// mirror (mirror.go) listens in the sprite on each port that a program in the nest listens on.
package nest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Host is the address that programs in a nest use to reach the sprite's own loopback.
const Host = "169.254.77.1"

// own is the nest's address at its only link. Its default route leads there.
const own = "169.254.77.2"

// inside is the first argument of the process that becomes the program.
const inside = "inside"

// Run runs a program in a new nest until it ends, and returns its error, which is an
// *exec.ExitError if the program failed. If ctx ends, Run sends SIGTERM to the program, and
// kills it after grace if it still runs. self is the command line that leads to Inside,
// without the program. The environment and the standard streams are this process's own.
func Run(ctx context.Context, self, program []string, grace time.Duration) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a nest: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "nest"), os.NewFile(uintptr(pair[1]), "nest")
	defer ours.Close()
	defer theirs.Close()
	cmd := exec.CommandContext(ctx, self[0], append(append(self[1:len(self):len(self)], inside), program...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{theirs}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	all := []syscall.SysProcIDMap{{Size: manyIDs}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("make a nest: %w", err)
	}
	theirs.Close()
	end, err := join(ours, cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		if ended := cmd.Wait(); ended != nil && ctx.Err() == nil {
			return fmt.Errorf("make a nest: %w (%w)", err, ended)
		}
		return errors.Join(ctx.Err(), err)
	}
	defer end()
	return cmd.Wait()
}

// manyIDs is how many users and groups a nest has: all but the last. If a namespace has all,
// programs take it for the machine's first one, and then do what a sandbox refuses. For
// example, runc would attach a filter for devices to a control group.
const manyIDs = 1<<32 - 2

// join makes the relay and the mirror of a nest, once the process in it has made its half,
// and lets that process go on.
func join(ours *os.File, pid int) (end func(), err error) {
	files, err := receive(ours, 4)
	if err != nil {
		return nil, err
	}
	netns := files[0]
	all := new(carried)
	r := &relay{netns: netns, carried: all}
	r.streams, err = net.FileListener(files[1])
	for _, file := range files[2:] {
		names, e := net.FilePacketConn(file)
		r.names, err = append(r.names, names), errors.Join(err, e)
	}
	for _, file := range files[1:] {
		file.Close()
	}
	if err != nil {
		return nil, err // this process ends
	}
	b, err := watchBridges(netns)
	if err != nil {
		return nil, err // this process ends
	}
	m := &mirror{netns: netns, ns: fmt.Sprintf("/proc/%d/ns/net", pid), open: map[string]*image{}, carried: all}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(r.serveStreams)
	for _, names := range r.names {
		wg.Go(func() { r.serveNames(names) })
	}
	wg.Go(func() { m.run(ctx) })
	wg.Go(b.run)
	end = func() {
		cancel()
		b.events.Close()
		r.streams.Close()
		for _, names := range r.names {
			names.Close()
		}
		wg.Wait()
		all.end()
		netns.Close()
	}
	if _, err := ours.Write([]byte{1}); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// receive takes count files from the other end of a socket.
func receive(from *os.File, count int) ([]*os.File, error) {
	var buf [1]byte
	oob := make([]byte, unix.CmsgSpace(count*4))
	_, n, _, _, err := unix.Recvmsg(int(from.Fd()), buf[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.New("the process inside has ended")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), "nest"))
	}
	if len(files) != count {
		return nil, fmt.Errorf("the process inside gave %d files instead of %d", len(files), count)
	}
	return files, nil
}

// Inside makes the inner half of a nest and becomes the program. It returns only with an error.
func Inside(program []string) error {
	gate := os.NewFile(3, "nest")
	syscall.CloseOnExec(3)
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := link(); err != nil {
		return err
	}
	files, err := doors()
	if err != nil {
		return err
	}
	var rights []int
	for _, file := range files {
		rights = append(rights, int(file.Fd()))
	}
	if err := unix.Sendmsg(3, []byte{1}, unix.UnixRights(rights...), nil, 0); err != nil {
		return err
	}
	var buf [1]byte
	if n, err := gate.Read(buf[:]); n != 1 {
		return fmt.Errorf("wait for the relay: %w", err)
	}
	at, err := exec.LookPath(program[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", at, syscall.Exec(at, program, os.Environ()))
}

// doors makes what the relay needs of the nest: its network, a socket for connections, and two
// for requests to name servers. Rules lead connections out of the nest there.
func doors() ([]*os.File, error) {
	netns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	streams, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return nil, err
	}
	file, err := streams.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	files := []*os.File{netns, file}
	port := fmt.Sprint(streams.Addr().(*net.TCPAddr).Port)
	rules := []string{
		"PREROUTING -p tcp -j REDIRECT --to-ports " + port,
		"OUTPUT -o " + linkName + " -p tcp -j REDIRECT --to-ports " + port,
	}
	// An answer must come from the address that the request was led to. For a program in the
	// nest itself that is the loopback, for a container its bridge.
	for _, way := range []struct{ at, rule string }{
		{"0.0.0.0:0", "PREROUTING"}, {"127.0.0.1:0", "OUTPUT -o " + linkName},
	} {
		names, err := net.ListenPacket("udp4", way.at)
		if err != nil {
			return nil, err
		}
		if file, err = names.(*net.UDPConn).File(); err != nil {
			return nil, err
		}
		files = append(files, file)
		rules = append(rules, fmt.Sprintf("%s -p udp --dport 53 -j REDIRECT --to-ports %d", way.rule, names.LocalAddr().(*net.UDPAddr).Port))
	}
	for _, rule := range rules {
		if err := table("-A", rule); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// table adds a rule to the table that changes addresses (-A, -I), or deletes it (-D).
func table(verb, rule string) error {
	// The newer iptables uses nftables, which gVisor does not have.
	const program = "iptables-legacy"
	out, err := exec.Command(program, strings.Fields("-t nat "+verb+" "+rule)...).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%s is not there: install the package iptables", program)
	case err != nil:
		return fmt.Errorf("%s -t nat %s %s: %w: %s", program, verb, rule, err, strings.TrimSpace(string(out)))
	}
	return nil
}
