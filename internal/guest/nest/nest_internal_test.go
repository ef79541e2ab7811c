package nest

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// An attribute has its length without the padding, and ends at a multiple of four bytes.
func TestAttribute(t *testing.T) {
	got := attribute(unix.IFLA_INFO_KIND, []byte("bridge"))
	want := []byte("\x0a\x00\x01\x00bridge\x00\x00")
	if !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// If a file of an earlier boot has a number that another program has, dockerd still starts. If
// the file names the program itself, dockerd does not start.
func TestRemoveStale(t *testing.T) {
	file := filepath.Join(t.TempDir(), "docker.pid")
	if err := removeStale(file, "dockerd"); err != nil {
		t.Errorf("without a file: %v", err)
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if err := removeStale(file, string(bytes.TrimSpace(comm))); err == nil {
		t.Error("the program runs: no error")
	}
	if err := removeStale(file, "dockerd"); err != nil {
		t.Errorf("another program: %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

// TestMirrorTriesAgain: a port that a program of the sprite has is opened once the program has
// ended.
func TestMirrorTriesAgain(t *testing.T) {
	program, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(program.Addr().String())
	m := &mirror{open: map[string]*image{}, carried: &carried{}}
	defer m.show(nil)
	m.show([]netip.AddrPort{at})
	if m.open[at.String()].listener != nil {
		t.Fatal("the port was free")
	}
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	m.show([]netip.AddrPort{at})
	if m.open[at.String()].listener == nil {
		t.Error("the port is not opened, though it is free now")
	}
}
