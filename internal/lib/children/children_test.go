package children_test

import (
	"bufio"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/children"
)

// parent is set in the process that a test kills: it runs the shell script that it names.
const parent = "COVE_TEST_PARENT"

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

func TestMain(m *testing.M) {
	script := os.Getenv(parent)
	if script == "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.ExtraFiles = []*os.File{os.NewFile(3, "says"), os.NewFile(4, "hears")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: os.Getenv("COVE_TEST_GROUP") != ""}
	ended, err := children.Start(cmd)
	if err != nil {
		os.Exit(1)
	}
	_, _ = io.WriteString(cmd.ExtraFiles[0], "started\n")
	_ = cmd.Wait()
	ended()
	os.Exit(1)
}

// TestKilledParent: programs end with a process that is killed. If they have a group of their
// own, the programs that they started end, too.
func TestKilledParent(t *testing.T) {
	for _, test := range []struct{ name, group, script string }{
		{"alone", "", `echo ready >&3; read -r x <&4`},
		{"group", "1", `/bin/sh -c 'echo ready >&3; read -r x <&4'; :`},
		{"deaf group", "1", `/bin/sh -c 'trap "" HUP INT TERM; echo ready >&3; read -r x <&4'; :`},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd, says := startParent(t, test.group, test.script)
			r := bufio.NewReader(says)
			var said []string // by the program, and by who has started it
			for range 2 {
				line, err := r.ReadString('\n')
				if err != nil {
					t.Fatalf("after %q: %v", said, err)
				}
				said = append(said, line)
			}
			if slices.Sort(said); !slices.Equal(said, []string{"ready\n", "started\n"}) {
				t.Fatalf("got %q", said)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 { // the end: nobody has the pipe any more
				t.Errorf("the programs are still there: %q, %v", rest, err)
			}
		})
	}
}

// startParent starts the process that runs script. The output of both comes from the returned
// file.
func startParent(t *testing.T, group, script string) (*exec.Cmd, *os.File) {
	t.Helper()
	says, theirSays, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { says.Close() })
	defer theirSays.Close()
	theirHears, hears, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hears.Close() }) // at the latest now its readers end
	defer theirHears.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), parent+"="+script, "COVE_TEST_GROUP="+group)
	cmd.ExtraFiles = []*os.File{theirSays, theirHears}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := says.SetReadDeadline(time.Now().Add(lastResort)); err != nil {
		t.Fatal(err)
	}
	return cmd, says
}

// TestKilledAsItBegins: a group ends too if its first act is to kill the process that has
// just started it.
func TestKilledAsItBegins(t *testing.T) {
	for range 20 {
		cmd, says := startParent(t, "1", `kill -KILL $PPID; /bin/sh -c 'echo ready >&3; read -r x <&4'; :`)
		_ = cmd.Wait()
		if rest, err := io.ReadAll(says); err != nil {
			t.Fatalf("a program is still there: %q, %v", rest, err)
		}
	}
}

// TestGroupIsTheProgram: a program that leads a group has the arguments, the files and the
// signals that the caller gave it, as one that leads none.
func TestGroupIsTheProgram(t *testing.T) {
	var got []string
	for _, group := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cmd := exec.Command("/bin/sh", "-c", `printf '%s|' "$0" "$@"; echo three >&3; ls /proc/$$/fd; kill -PIPE $$`, "a b", "", "$c", "'d")
		cmd.ExtraFiles = []*os.File{w}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: group}
		was := cmd.String()
		out, err := children.CombinedOutput(cmd)
		w.Close()
		if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGPIPE {
			t.Errorf("group %t: it ignores SIGPIPE: %v", group, err)
		}
		if cmd.String() != was || len(cmd.ExtraFiles) != 1 {
			t.Errorf("group %t: the command is %s, with %d files", group, cmd, len(cmd.ExtraFiles))
		}
		if three, err := io.ReadAll(r); err != nil || string(three) != "three\n" {
			t.Errorf("group %t: got %q, %v", group, three, err)
		}
		got = append(got, string(out))
		absent := exec.Command("/nowhere/program")
		absent.SysProcAttr = &syscall.SysProcAttr{Setpgid: group}
		if err := children.Run(absent); !isNotExist(err) {
			t.Errorf("group %t: got %v", group, err)
		}
	}
	if !strings.HasPrefix(got[0], "a b||$c|'d|0\n1\n") || got[1] != got[0] {
		t.Errorf("alone: %q\nas a group: %q", got[0], got[1])
	}
}

// TestThreadEnds: a program goes on when the thread that called Start ends.
func TestThreadEnds(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	thread := make(chan int)
	var ended func()
	var start func()
	start = func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if syscall.Gettid() == os.Getpid() {
			go start() // the first thread stays; another goroutine can't get it while this one waits
			select {}
		}
		if ended, err = children.Start(cmd); err != nil {
			t.Error(err)
		}
		thread <- syscall.Gettid()
	}
	go start()
	id := <-thread
	if ended == nil {
		t.FailNow()
	}
	for deadline := time.Now().Add(lastResort); ; runtime.Gosched() {
		if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(id)); err != nil {
			if !os.IsNotExist(err) {
				t.Fatal(err)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the thread does not end")
		}
	}
	if _, err := io.WriteString(in, "hello\n"); err != nil {
		t.Error(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "hello\n" {
		t.Errorf("got %q, %v", line, err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	ended()
}

// TestStartFails: a program that is not there is an error, as of exec.Cmd.
func TestStartFails(t *testing.T) {
	if _, err := children.Output(exec.Command("/nowhere/program")); !isNotExist(err) {
		t.Errorf("got %v", err)
	}
	out, err := children.CombinedOutput(exec.Command("/bin/sh", "-c", "echo out; echo err >&2; exit 3"))
	if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 3 || string(out) != "out\nerr\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func isNotExist(err error) bool {
	e, ok := err.(*fs.PathError)
	return ok && e.Err == syscall.ENOENT
}
