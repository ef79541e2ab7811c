// Package need is for tests that some machines can't run: it skips them, and notes why and
// how to have them run.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Noted names the variable with the path of a file. Each test that is skipped adds a line to
// it, "REASON: REMEDY". Without it nothing is noted. make test prints the file's lines, each
// once with its number.
const Noted = "COVE_SKIPPED"

// Ordinary names the variable that is set for an ordinary user's run beside root's.
const Ordinary = "COVE_TEST_ORDINARY"

// Root skips the test if root does not run it. With COVE_REQUIRE_SANDBOX=1 the test fails
// then, except in an ordinary user's run beside root's.
func Root(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv(Ordinary) != "":
		t.Skip("root's run has it")
	default:
		Missing(t, "only root can run it", "sudo make test")
	}
}

// Program returns the path of a program on this machine. If there is none, it is Missing,
// with the Debian package that has it.
func Program(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "there is no "+name, "apt-get install "+pkg)
	}
	return path
}

// Missing skips the test for want of something, and says how to get it. With
// COVE_REQUIRE_SANDBOX=1 the test fails.
func Missing(t testing.TB, reason, remedy string) {
	t.Helper()
	if os.Getenv("COVE_REQUIRE_SANDBOX") == "1" {
		t.Fatalf("%s: %s", reason, remedy)
	}
	skip(t, reason+": "+remedy)
}

func skip(t testing.TB, line string) {
	t.Helper()
	if err := note(line); err != nil {
		t.Error(err)
	}
	t.Skip(line)
}

// note adds a line to the file of skipped tests. Processes write to it at the same time.
func note(line string) error {
	name := os.Getenv(Noted)
	if name == "" {
		return nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("note a skipped test: %w", err)
	}
	defer file.Close()
	_, err = file.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	return err
}
