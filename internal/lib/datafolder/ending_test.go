package datafolder_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/sprites"
)

// half makes this program a process whose first thread has ended while another one still
// listens. A server is like that for a moment after kill -9.
const half = "COVE_TEST_HALF"

func TestMain(m *testing.M) {
	if os.Getenv(half) == "" {
		os.Exit(m.Run())
	}
	if os.Getenv(half) == "child" { // of a server, before it has executed its program
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(ln.Addr())
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadByte() // the test has noted this process
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(0)
	}()
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

func init() {
	if os.Getenv(half) != "" {
		runtime.LockOSThread()
	}
}

// The next server listens where a killed one did, even if the killed one is not quite gone.
// Clients that follow it, and sprites' URLs, have no other address.
func TestAddressOfOneThatEnds(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), half+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := private.StartOf(cmd.Process.Pid)
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || started == "" {
		t.Fatal(err, started)
	}
	addr = strings.TrimSpace(addr)
	if _, err := in.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	for private.StartOf(cmd.Process.Pid) != "" {
		<-time.After(time.Millisecond)
	}
	dir := t.TempDir()
	text, err := json.Marshal(datafolder.Server{
		ServerInfo: sprites.ServerInfo{PID: cmd.Process.Pid, URL: "http://" + addr},
		Processes:  private.Processes(), Started: started,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{datafolder.ServerFile: string(text), datafolder.AddressFile: addr, datafolder.LockFile: ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := make(chan string, 1)
	go func() { found <- datafolder.Address(t.Context(), dir) }()
	select {
	case got := <-found:
		t.Errorf("while its last thread listens: got %q", got)
	case <-time.After(200 * time.Millisecond):
		_ = in.Close()
		if got := <-found; got != addr {
			t.Errorf("got %q, want %s", got, addr)
		}
	}
	_ = in.Close()
	_ = cmd.Wait()
}

// TestAddressEnds: a caller that waits for a server's end can be asked to end itself.
func TestAddressEnds(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), half+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr = strings.TrimSpace(addr)
	text, err := json.Marshal(datafolder.Server{
		ServerInfo: sprites.ServerInfo{PID: cmd.Process.Pid, URL: "http://" + addr},
		Processes:  private.Processes(), Started: private.StartOf(cmd.Process.Pid),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = in.Write([]byte("x")) // its first thread ends
	for private.StartOf(cmd.Process.Pid) != "" {
		<-time.After(time.Millisecond)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{datafolder.ServerFile: string(text), datafolder.AddressFile: addr, datafolder.LockFile: ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	found := make(chan string, 1)
	go func() { found <- datafolder.Address(ctx, dir) }()
	cancel()
	select {
	case got := <-found: // and not only once the other process has ended
		if got != "" {
			t.Errorf("got %q", got)
		}
	case <-time.After(4 * time.Minute):
		t.Error("it waits on")
	}
}

// TestAddressAChildHolds: a child that a server had just begun still has the listener when the
// server is gone. The next server waits for that, and for no other program's listener.
func TestAddressAChildHolds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, dir := ln.Addr().String(), t.TempDir()
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	write := func(listener string) {
		t.Helper()
		text, err := json.Marshal(datafolder.Server{
			ServerInfo: sprites.ServerInfo{PID: gone.Process.Pid, URL: "http://" + addr},
			Processes:  private.Processes(), Started: "1", Listener: listener,
		})
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{datafolder.ServerFile: string(text), datafolder.AddressFile: addr, datafolder.LockFile: ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("1")
	if got := datafolder.Address(t.Context(), dir); got != "" {
		t.Errorf("while another program listens there: got %q", got)
	}
	inode := datafolder.Listener(addr)
	if inode == "" || datafolder.Listener("127.0.0.1:1") != "" {
		t.Fatalf("the listener is %q", inode)
	}
	write(inode)
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0])
	child.Env, child.ExtraFiles = append(os.Environ(), half+"=child"), []*os.File{file}
	in, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Close(), ln.Close()
	found := make(chan string, 1)
	go func() { found <- datafolder.Address(t.Context(), dir) }()
	select {
	case got := <-found:
		t.Errorf("while the child has the listener: got %q", got)
		_ = in.Close()
	case <-time.After(200 * time.Millisecond):
		_ = in.Close()
		if got := <-found; got != addr {
			t.Errorf("got %q, want %s", got, addr)
		}
	}
	_ = child.Wait()
}

// TestAddressOfACopy: the server that a copy of a data folder names serves the original, and
// nobody waits for its end.
func TestAddressOfACopy(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	addr, dir := ln.Addr().String(), t.TempDir()
	text, err := json.Marshal(datafolder.Server{
		ServerInfo: sprites.ServerInfo{PID: os.Getpid(), URL: "http://" + addr, Data: t.TempDir()},
		Processes:  private.Processes(), Started: private.StartOf(os.Getpid()), Listener: datafolder.Listener(addr),
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{datafolder.ServerFile: string(text), datafolder.AddressFile: addr, datafolder.LockFile: ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := make(chan string, 1)
	go func() { found <- datafolder.Address(t.Context(), dir) }()
	select {
	case <-time.After(2 * time.Minute):
		_ = ln.Close() // the end that it waits for
	case got := <-found:
		found <- got
	}
	if got := <-found; got != "" {
		t.Errorf("got %q: it waited for the original's server", got)
	}
	if pid := datafolder.Dying(dir); pid != 0 {
		t.Errorf("process %d, which lives, ends", pid)
	}
}
