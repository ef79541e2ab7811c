// Package e2e has the parts that the end-to-end tests share: a person's machine with a
// real server, real sandboxes and the binaries of cmd. It has helpers to act on that
// machine and to check it. The tests are the packages of internal/e2e. The TestMain of
// each calls e2e.Main.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/need"
)

// BinDir holds the binaries that the tests run.
var BinDir string

// module is the module of the programs that Main builds.
const module = "github.com/cove-dev/cove"

// turnVariable is set for a test binary that another one runs while it has its turn.
const turnVariable = "COVE_TEST_TURN"

// Main runs the tests of a package with the binaries that COVE_BIN names, or with its own.
// The packages of internal/e2e take turns: some of their tests look at the whole machine.
func Main(m *testing.M) int {
	if file := os.Getenv(peakVariable); file != "" {
		return measurePeak(file)
	}
	BinDir = os.Getenv("COVE_BIN") // made by make build
	if BinDir == "" {
		dir, err := os.MkdirTemp("", "cove-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, module+"/cmd/cove", module+"/cmd/cove-guest", module+"/cmd/cove-loop", module+"/cmd/cove-runsc")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the binaries: %v\n%s", err, out)
			return 1
		}
		BinDir = dir
	}
	end, err := takeTurn()
	if err != nil {
		fmt.Fprintln(os.Stderr, "wait for the other end-to-end tests:", err)
		return 1
	}
	defer end()
	unshare, err := share()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer unshare()
	return m.Run()
}

// takeTurn returns once no other package of internal/e2e runs tests. It locks the parent
// of the working directory: go test starts each package in a folder of internal/e2e.
func takeTurn() (end func(), err error) {
	if os.Getenv(turnVariable) != "" {
		return func() {}, nil
	}
	folder, err := os.Open("..")
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Fprintln(os.Stderr, "waiting for another package of internal/e2e in this clone")
	}
	for {
		err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX)
		if err != syscall.EINTR { //nolint:errorlint // a system call's own error
			break
		}
	}
	if err != nil {
		_ = folder.Close()
		return nil, err
	}
	if err := os.Setenv(turnVariable, "1"); err != nil {
		_ = folder.Close()
		return nil, err
	}
	return func() { _ = folder.Close() }, nil
}

// Soak reports whether a test should run in its long form (make soak); make test runs a
// sample.
func Soak() bool { return os.Getenv("COVE_SOAK") == "1" }

// RequireSandbox skips the test if the machine can't run a sandbox.
func RequireSandbox(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 { // an ordinary user's sandboxes need it
		need.Program(t, "newuidmap", "uidmap")
	}
}
