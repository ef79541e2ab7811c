package jobs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/supervise"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// standIn stands for Claude Code, and imitates only its streams. It runs the lines of the
// plan that begin with RUN. In a conversation it commits each message.
const standIn = `#!/bin/sh
case "$*" in
--version) echo 1 ;;
*--input-format*)
	n=0
	while read -r line; do
		n=$((n + 1))
		printf '{"type":"assistant","message":{"id":"m%d","content":[]}}\n' $n
		printf '%s\n' "$line" >>said.txt
		git add said.txt && git commit -q -m "Message $n"
		printf '{"type":"result","subtype":"success","result":"turn %d","num_turns":%d}\n' $n $n
	done ;;
*)
	sed -n 's/^RUN //p' >/tmp/run.$$
	exec sh /tmp/run.$$ "$@" ;;
esac
`

// tools makes the folder that has the stand-in, and returns it.
func tools(h *e2e.Host) string {
	h.T.Helper()
	h.Write("agent/claude", standIn)
	tools := filepath.Join(filepath.Dir(h.Home), "agent")
	if err := os.Chmod(filepath.Join(tools, "claude"), 0o755); err != nil {
		h.T.Fatal(err)
	}
	return tools
}

// standIns returns the flags of a push to a new sprite, with the stand-in as its agent.
func standIns(h *e2e.Host) []string {
	h.T.Helper()
	tools := tools(h)
	if h.Far == nil {
		return append(standInsThere(h), "--include", tools)
	}
	h.Write("bring.sh", "mkdir -p ~/.local/bin\ncat >~/.local/bin/claude <<'end of it'\n"+standIn+"end of it\nchmod +x ~/.local/bin/claude\n")
	return append(standInsThere(h), "--setup", filepath.Join(filepath.Dir(tools), "bring.sh"))
}

// standInsThere is standIns for a push to a sprite of standInSprite, which has the
// stand-in.
func standInsThere(h *e2e.Host) []string {
	h.T.Helper()
	if h.Far == nil {
		return []string{"--agent", "claude", "--env", "PATH=" + tools(h) + ":/.sprite/bin:/usr/local/bin:/usr/bin:/bin"}
	}
	return []string{"--agent", "claude", "--env", "ANTHROPIC_API_KEY=none-is-needed"}
}

// standInSprite makes a sprite that has the stand-in.
func standInSprite(h *e2e.Host, name string, args ...string) {
	h.T.Helper()
	create := append([]string{"create", name}, args...)
	if h.Far == nil {
		h.Run("", "cove", append(create, "--include", tools(h))...)
		return
	}
	h.Run("", "cove", create...)
	h.Run("", "cove", "exec", "-s", name, "mkdir", "-p", ".local/bin")
	h.Run("", "cove", "cp", tools(h)+"/claude", name+":.local/bin/claude")
}

// wholeMachine returns all processes of the host's server and sandboxes.
func wholeMachine(h *e2e.Host) []int {
	var pids []int
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		text, err := os.ReadFile(name)
		var pid int
		if _, scanErr := fmt.Sscanf(name, "/proc/%d/", &pid); err != nil || scanErr != nil || pid == os.Getpid() {
			continue
		}
		env, _ := os.ReadFile(filepath.Dir(name) + "/environ")
		if bytes.Contains(text, []byte(h.Data)) || bytes.Contains(env, []byte("COVE_DATA="+h.Data)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// jobEnd is one way for a job to end.
type jobEnd struct {
	name, step string // step is the script of the second step
	flags      []string
	harm       func(sprite string) // while the second step is at work
	state      cove.JobState
	kind       string
	reason     string // a part of the outcome's reason
	code       int    // of job wait
	job        string
	sprite     string
	ended      cove.Job
}

// untilGoOn is a step that waits.
const untilGoOn = "while ! test -e ~/go-on; do sleep 0.1; done"

// TestJobJ2: however a job ends, it has exactly one end: one record in the sprite, one
// last event, one state, which no later server changes. Its commits can be pulled. The
// store's TestFinishHasOneWinner shows that one of many concurrent ends wins.
func TestJobJ2(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	killSupervisor := func(sprite string) {
		h.Run("", "cove", "exec", "-s", sprite, "--user", "root", "pkill", "-9", "-f", "cove-guest[^ ]* job run")
	}
	killSandbox := func(sprite string) {
		st, err := shim.ReadState(filepath.Join(place(h).Data, "run", e2e.JSONField(t, h.Run("", "cove", "info", sprite, "--json"), "id")))
		if err != nil {
			t.Fatal(err)
		}
		e2e.SignalAll(t, syscall.SIGKILL, st.PID)
	}
	powerCut := func(string) {
		pids := append(wholeMachine(h), wholeMachine(place(h))...)
		for _, pid := range pids {
			_ = e2e.Signal(pid, syscall.SIGKILL) // some end with the others
		}
		for _, pid := range pids {
			if err := e2e.AwaitEnd(pid); err != nil {
				t.Fatal(err)
			}
		}
		if h.Far != nil {
			h.Far.Serve(nil)
		}
	}
	tests := []*jobEnd{
		{name: "ok", step: "true", state: cove.JobSucceeded, kind: "success"},
		{name: "crash", step: "kill -SEGV $PPID; sleep 9", state: cove.JobFailed, kind: "agent_failed", code: 1},
		{name: "supervisor", step: untilGoOn, harm: killSupervisor, state: cove.JobLost, kind: "lost", code: 75},
		{name: "sandbox", step: "echo ran >>~/ran\n" + untilGoOn, harm: func(sprite string) { untilRan(h, sprite); forkAtWork(h, sprite); killSandbox(sprite) }, state: cove.JobLost, kind: "lost", code: 75},
	}
	if os.Geteuid() == 0 { // only root's sandboxes have a limit on any machine
		// On a busy machine the kernel may end a sandbox whose program takes its memory at once.
		const grow = `python3 -c 'import time; x = [time.sleep(0.01) or b"x" * (1 << 20) for _ in range(1024)]'`
		tests = append(tests, &jobEnd{
			name: "memory", step: grow, flags: []string{"--memory", "256M"}, state: cove.JobFailed, kind: "memory_limit", code: 1,
			reason: "out of memory: python3 ",
		})
	}
	for _, test := range tests {
		begin(h, test)
	}
	for _, test := range tests {
		toItsEnd(h, test)
		if test.name == "sandbox" {
			ranOnce(h, test.job, test.sprite, "twin")
		}
	}
	last := &jobEnd{name: "power cut", step: untilGoOn, harm: powerCut, state: cove.JobLost, kind: "lost", code: 75}
	begin(h, last)
	toItsEnd(h, last) // with another server
	for _, test := range append(tests, last) {
		before, after := test.ended, h.Job(test.job)
		if after.State != before.State || *after.Outcome != *before.Outcome || !after.EndedAt.Equal(*before.EndedAt) || after.LastSeq != before.LastSeq {
			t.Errorf("%s: the end has changed from %+v to %+v", test.name, before, after)
		}
		h.Try(test.name, "cove", "pull", test.job)
		if got := h.Run(test.name, "git", "log", "--format=%s", "refs/cove/"+test.job+"/head"); got != "One\nfirst\n" {
			t.Errorf("%s: commits: got %q", test.name, got)
		}
	}
}

// untilRan waits for the line that the step of a job writes. The line comes after the step's
// event.
func untilRan(h *e2e.Host, sprite string) {
	h.T.Helper()
	e2e.Await(h.T, "the step has begun its script", func() bool {
		out, _ := h.Try("", "cove", "exec", "-s", sprite, "cat", "/home/sprite/ran")
		return out == "ran\n"
	})
}

// forkAtWork forks a sprite with a job at work as twin, if the protocol has forks.
func forkAtWork(h *e2e.Host, sprite string) {
	h.T.Helper()
	if h.Far == nil {
		h.Run("", "cove", "fork", sprite, "twin")
	}
}

// ranOnce checks that neither the job's sprite, which was cold meanwhile, nor its copy has run
// the job's step again or gone on with it. In both, the returning supervisor has ended the log.
func ranOnce(h *e2e.Host, job string, names ...string) {
	h.T.Helper()
	for _, name := range names {
		if name == "twin" && h.Far != nil {
			continue
		}
		look := func(script string) string {
			h.T.Helper()
			return h.Run("", "cove", "exec", "-s", name, "sh", "-c", script)
		}
		look("touch ~/go-on")
		e2e.Await(h.T, name+" has ended its log", func() bool {
			return look(`grep -c '"type":"end"' ~/.cove/jobs/`+job+`/events.jsonl; true`) == "1\n"
		})
		e2e.Await(h.T, name+" has no process of the job", func() bool {
			return look("grep -lz ^COVE_JOB= /proc/[0-9]*/environ 2>/dev/null; true") == ""
		})
		if got := look("cat ~/ran; git -C ~/work/" + job + "/* log --format=%s"); got != "ran\nOne\nfirst\n" {
			h.T.Errorf("%s: the step ran and the commits are %q", name, got)
		}
	}
}

// begin begins a job in a repository of its own.
func begin(h *e2e.Host, test *jobEnd) {
	h.T.Helper()
	plan := "## One\n```sh\necho 1 > one.txt\n```\n## Two\n```sh\n" + test.step + "\n```\n"
	h.Repository(test.name, map[string]string{"plan.md": plan})
	test.job, test.sprite = h.Push(test.name, append([]string{"plan.md", "--agent", "shell"}, test.flags...)...)
}

// toItsEnd does the harm, and checks the job's end. A second supervisor does not change
// that end.
func toItsEnd(h *e2e.Host, test *jobEnd) {
	h.T.Helper()
	if test.harm != nil {
		h.UntilStep(test.job)
		test.harm(test.sprite)
	}
	if out, code := h.Try("", "cove", "job", "wait", test.job, "--timeout", "10m"); code != test.code {
		h.T.Errorf("%s: wait exited with %d, want %d: %s", test.name, code, test.code, out)
	}
	test.ended = h.Job(test.job)
	if job := test.ended; job.State != test.state || job.Outcome == nil || job.Outcome.Kind != test.kind || !strings.Contains(job.Outcome.Reason, test.reason) || job.Commits != 1 {
		h.T.Fatalf("%s: got %s, %+v, %d commits, want %s", test.name, job.State, job.Outcome, job.Commits, test.state)
	}
	e2e.Await(h.T, "the end of the first supervisor", func() bool {
		out, code := h.Try("", "cove", "exec", "-s", test.sprite, "cove-guest", "job", "finalize", "/home/sprite/.cove/jobs/"+test.job, "other")
		if code != 0 && code != supervise.ExitBusy {
			h.T.Fatalf("%s: finalize exited with %d: %s", test.name, code, out)
		}
		return code == 0
	})
	ends := 0
	for _, ev := range h.Events(test.job) {
		if ev.Type == "end" {
			ends++
		}
	}
	if ends != 1 {
		h.T.Errorf("%s: %d events say that the job has ended", test.name, ends)
	}
}

// TestJobJ3: neither an agent's exit code alone nor its result alone makes a job succeed.
func TestJobJ3(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	const result = `RUN echo '{"type":"result","subtype":"success","is_error":%v,"result":"API Error: 401"}'` + "\n"
	plans := map[string]string{
		"good.md":  fmt.Sprintf(result, false),
		"error.md": fmt.Sprintf(result, true),
		"code.md":  fmt.Sprintf(result, false) + "RUN exit 3\n",
		"none.md":  "RUN echo done\n",
	}
	repo := h.Repository("repo", plans)
	standInSprite(h, "shared")
	flags := standInsThere(h)
	for plan, want := range map[string]string{"good.md": "success", "error.md": "agent_failed", "code.md": "agent_failed", "none.md": "no_result"} {
		job, _ := h.Push(repo, append([]string{plan, "-s", "shared"}, flags...)...)
		_, code := h.Try("", "cove", "job", "wait", job)
		if got := h.Job(job).Outcome; got.Kind != want || (code == 0) != (want == "success") {
			t.Errorf("%s: got %+v and exit code %d, want %s", plan, got, code, want)
		}
	}
}

// TestJobJ4: each guard ends a runaway job, keeps its commits, and is named in the job.
// TestSoakSleep shows that sleep does not count.
func TestJobJ4(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	const one = "## One\n```sh\necho 1 > one.txt\n```\n"
	repo := h.Repository("repo", map[string]string{
		"busy.md":   one + "## Two\n```sh\nwhile :; do echo busy; sleep 0.2; done\n```\n",
		"silent.md": one + "## Two\n```sh\nsleep 6000\n```\n",
		"steps.md":  one + "## Two\n```sh\nsleep 6000\n```\n",
		"full.md":   one + "## Two\n```sh\nhead -c 40M /dev/zero >~/big; sleep 6000\n```\n",
	})
	type test struct {
		plan, flag, value string
		limit             time.Duration // the value, where it must be enough for the first step
		state             cove.JobState
		kind, reason      string
		code              int
		job               string
	}
	tests := []*test{
		{plan: "busy.md", flag: "--timeout", limit: 6 * time.Second, state: cove.JobTimedOut, kind: "timeout", reason: "guard timeout: its time (LIMIT) is up", code: 124},
		{plan: "silent.md", flag: "--max-idle", limit: 2 * time.Second, state: cove.JobTimedOut, kind: "timeout", reason: "guard idle: no event for LIMIT", code: 124},
		{plan: "steps.md", flag: "--max-turns", value: "1", state: cove.JobFailed, kind: "turn_limit", reason: "guard turns: more than 1 of the plan's steps", code: 1},
		{plan: "full.md", flag: "--max-disk", value: "20M", state: cove.JobFailed, kind: "disk_limit", reason: "guard disk: its files have grown by", code: 1},
	}
	h.Run("", "cove", "create", "shared")
	push := func(test *test) {
		args := []string{test.plan, "--agent", "shell", test.flag, test.value}
		if test.limit > 0 {
			args[4] = test.limit.String()
		}
		if test.plan != "busy.md" { // that has one of its own, as most have
			args = append(args, "-s", "shared")
		}
		test.job, _ = h.Push(repo, args...)
	}
	for _, test := range tests {
		push(test)
		if test.plan == "steps.md" { // the disk guard also counts the others' writes
			h.Try("", "cove", "job", "wait", test.job)
		}
	}
	for _, test := range tests {
		out, code := h.Try("", "cove", "job", "wait", test.job, "--timeout", "10m")
		job := h.Job(test.job)
		if test.limit > 0 && job.Commits < 1 { // on a slow machine
			e2e.LongEnough(t, 6*test.limit, func(limit time.Duration) bool {
				test.limit = limit
				push(test)
				out, code = h.Try("", "cove", "job", "wait", test.job, "--timeout", "20m")
				job = h.Job(test.job)
				return job.Commits > 0
			})
		}
		test.reason = strings.Replace(test.reason, "LIMIT", test.limit.String(), 1)
		if code != test.code {
			t.Errorf("%s: wait exited with %d, want %d: %s", test.plan, code, test.code, out)
		}
		if job.State != test.state || job.Outcome.Kind != test.kind || !strings.HasPrefix(job.Outcome.Reason, test.reason) || job.Commits < 1 && test.plan != "steps.md" {
			t.Errorf("%s: got %s, %+v, %d commits", test.plan, job.State, job.Outcome, job.Commits)
		}
		if test.flag != "--timeout" && job.Guards == (cove.Guards{}) {
			t.Errorf("%s: the job does not say what guards it", test.plan)
		}
	}
	for _, args := range [][]string{
		{"--max-idle", "-1s"}, {"--max-turns", "-1"}, {"--max-disk", "much"}, {"--max-disk", "1K"}, {"--converse", "--interactive"},
	} {
		if out, code := h.Try(repo, "cove", append([]string{"push", "busy.md", "--agent", "shell"}, args...)...); code != 2 {
			t.Errorf("%v: exit code %d: %s", args, code, out)
		}
	}
	for _, args := range [][]string{{"--converse"}, {"--interactive", "--max-idle", "5m"}} {
		if out, code := h.Try(repo, "cove", append([]string{"push", "busy.md", "--agent", "shell"}, args...)...); code != 1 || !strings.Contains(out, "hint") {
			t.Errorf("%v: exit code %d: %s", args, code, out)
		}
	}
}

// follower is a command that follows a job.
type follower struct {
	*exec.Cmd
	told, said e2e.Acks // its two streams
	ended      chan error
}

// newFollower starts a command, and returns once it follows its job.
func newFollower(h *e2e.Host, args ...string) *follower {
	h.T.Helper()
	f := &follower{Cmd: h.Command("", "cove", args...), ended: make(chan error, 1)}
	f.Stdout, f.Stderr = &f.told, &f.said
	if err := f.Start(); err != nil {
		h.T.Fatal(err)
	}
	go func() { f.ended <- f.Wait() }()
	e2e.Await(h.T, "the first word of cove "+strings.Join(args, " "), func() bool { return len(f.told.Lines()) > 0 || len(f.ended) > 0 })
	return f
}

// end waits for the command's end. It returns the followed lines, and the error with the remarks.
func (f *follower) end() (told string, err error) {
	if err = <-f.ended; err != nil {
		err = fmt.Errorf("%w: %s", err, f.said.String())
	}
	return f.told.String(), err
}

// TestJobJ5: a follower of a job sees each event once, even if the server is killed
// meanwhile and another takes its place. It may start from any event's number.
func TestJobJ5(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{
		"plan.md": "## One\n```sh\nfor i in 1 2 3; do echo before $i; done\n```\n## Two\n```sh\nwhile ! test -e ~/go-on; do sleep 0.1; done\nfor i in 1 2 3; do echo after $i; done\n```\n",
	})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell")
	h.UntilStep(job)
	followed := newFollower(h, "job", "events", "-f", job)
	from := newFollower(h, "job", "events", "-f", "--from", "4", job)
	logged := newFollower(h, "job", "logs", "-f", job)
	h.EndServer(syscall.SIGKILL)
	h.Run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	h.Run("", "cove", "server", "start") // unless a follower or the last command has started one
	text, err := followed.end()
	if err != nil {
		t.Fatalf("events -f: %v: %s", err, text)
	}
	all := e2e.Numbered(h, text, 1)
	if last := all[len(all)-1]; last.Type != "end" || last.Outcome == nil || last.Outcome.Kind != "success" {
		t.Errorf("the last event is %+v", last)
	}
	if text, err := from.end(); err != nil || len(e2e.Numbered(h, text, 4)) != len(all)-3 {
		t.Errorf("events -f --from 4: %v: %s", err, text)
	}
	if text := h.Run("", "cove", "job", "events", "--from", fmt.Sprint(len(all)), job); len(e2e.Numbered(h, text, int64(len(all)))) != 1 {
		t.Errorf("events --from the last: %s", text)
	}
	text, err = logged.end()
	for _, line := range []string{"before 1", "before 3", "after 1", "after 3"} {
		if strings.Count(text, "| "+line+"\n") != 1 {
			t.Errorf("logs -f (%v) have not %q once: %s", err, line, text)
		}
	}
}

// outlived reports whether a job's agent was killed because it took too long to end in order. A
// busy machine may hold up its git for so long.
func outlived(h *e2e.Host, job, sprite string) bool {
	h.T.Helper()
	return strings.Contains(h.Run("", "cove", "exec", "-s", sprite, "cat", "/home/sprite/.cove/jobs/"+job+"/supervisor.log"), "the agent is killed")
}

// TestJobJ7: a job that is stopped ends in order if it can, else by force. Stopping it
// again changes nothing. A waiting pull ends too (J8).
func TestJobJ7(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	flags := standIns(h)
	repo := h.Repository("repo", map[string]string{
		"polite.md":   "RUN trap 'echo x >x; git add x; git commit -q -m \"In order\"; exit 0' TERM\nRUN echo ready\nRUN while :; do sleep 0.1; done\n",
		"stubborn.md": "RUN trap '' TERM\nRUN echo x >x; git add x; git commit -q -m Before\nRUN (trap '' TERM HUP; setsid sleep 888) &\nRUN echo ready\nRUN while :; do sleep 0.1; done\n",
	})
	for tries, plans := 1, []string{"polite.md", "stubborn.md"}; len(plans) > 0; tries++ {
		plan := plans[0]
		want := map[string]string{"polite.md": "In order", "stubborn.md": "Before"}[plan]
		job, sprite := h.Push(repo, append([]string{plan}, flags...)...)
		e2e.Await(t, "the agent is ready", func() bool {
			out, _ := h.Try("", "cove", "job", "logs", job)
			return strings.Contains(out, "| ready")
		})
		_, waited := h.Background(repo, "cove", "pull", "--into=none", job, "--wait=10m")
		began := time.Now()
		h.Run("", "cove", "job", "stop", job)
		if took := time.Since(began); plan == "stubborn.md" && took < 9*time.Second {
			t.Errorf("%s: it took %v", plan, took)
		}
		if _, code := h.Try("", "cove", "job", "wait", job); code != 130 { // job stop itself waits for half a minute
			t.Errorf("%s: wait exited with %d", plan, code)
		}
		if plan == "polite.md" && tries < 10 && h.Job(job).Commits == 0 && outlived(h, job, sprite) {
			_, _ = waited()
			continue
		}
		plans = plans[1:]
		first := h.Run("", "cove", "job", "show", job, "--json")
		if got := h.Job(job); got.State != cove.JobCancelled || got.Outcome.Kind != "cancelled" || got.Commits != 1 {
			t.Errorf("%s: got %s, %+v, %d commits", plan, got.State, got.Outcome, got.Commits)
		}
		if again := h.Run("", "cove", "job", "stop", job, "--json"); e2e.JSONField(t, again, "ended_at") != e2e.JSONField(t, first, "ended_at") {
			t.Errorf("%s: stopped again: %s", plan, again)
		}
		if out, err := waited(); !strings.HasSuffix(fmt.Sprint(err), "exit status 130") || !strings.Contains(out, want) {
			t.Errorf("%s: who waited: %v, %s", plan, err, out)
		}
		if out, code := h.Try("", "cove", "exec", "-s", sprite, "pgrep", "-f", "sleep 888|claude"); code != 1 {
			t.Errorf("%s: left: %s", plan, out)
		}
	}
}

// TestJobJ9: an agent that was pushed with --converse waits after each turn for messages.
// It ends when it is told that no more will come.
func TestJobJ9(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": "Ask me.\n", "shell.md": e2e.WaitingPlan})
	job, sprite := h.Push(repo, append([]string{"plan.md", "--converse", "--max-idle", "10m"}, standIns(h)...)...)
	waiting := func(n int) {
		t.Helper()
		e2e.Await(t, fmt.Sprintf("waiting after message %d", n), func() bool {
			out := h.Run("", "cove", "exec", "-s", sprite, "sh", "-c", "cat work/*/*/said.txt | wc -l")
			if job := h.Job(job); job.State.Terminal() {
				t.Fatalf("the job has ended: %+v\n%s", job.Outcome, h.Run("", "cove", "job", "logs", job.ID))
			}
			return strings.TrimSpace(out) == fmt.Sprint(n) && h.Job(job).State == cove.JobWaiting
		})
	}
	waiting(1)
	if out := h.Run("", "cove", "job", "show", job); !strings.Contains(out, "cove job send "+job) {
		t.Errorf("show does not say what to do: %s", out)
	}
	h.EndServer(syscall.SIGKILL) // the agent waits on
	h.Run("", "cove", "job", "send", job, "It's \"this\" one,\nand $HOME.")
	waiting(2)
	send := h.Command("", "cove", "job", "send", job, "-", "--close")
	send.Stdin = strings.NewReader("The last.")
	if out, err := send.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.Run(repo, "cove", "pull", job, "--wait=10m")
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Message 3\nMessage 2\nMessage 1\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	said := h.Run(repo, "cat", "said.txt")
	for _, want := range []string{`Ask me.`, `{"type":"user","message":{"role":"user","content":[{"type":"text","text":"It's \"this\" one,\nand $HOME."}]}}`, `"The last."`} {
		if !strings.Contains(said, want) {
			t.Errorf("the agent did not hear %s:\n%s", want, said)
		}
	}
	if logs := h.Run("", "cove", "job", "logs", job); !strings.Contains(logs, ">> It's \"this\" one,\n>> and $HOME.\n") || strings.Count(logs, "== waiting") < 2 {
		t.Errorf("the log is\n%s", logs)
	}

	other, _ := h.Push(repo, "shell.md", "--agent", "shell", "--dirty", "ignore")
	for _, test := range []struct{ job, want string }{{job, "has ended"}, {other, "takes no messages"}, {"000000", "cove job list"}} {
		if out, code := h.Try("", "cove", "job", "send", test.job, "hello"); code != 1 || !strings.Contains(out, test.want) {
			t.Errorf("send to %s: %d, %s", test.job, code, out)
		}
	}
	if out, code := h.Try("", "cove", "job", "send", job); code != 2 {
		t.Errorf("nothing to send: %d, %s", code, out)
	}
}

// TestJobJ11: in an agent's environment, the push's values override the sprite's. A job
// shows the names, and never the values.
func TestJobJ11(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--env", "A=sprite-value", "--env", "B=sprite-value")
	repo := h.Repository("repo", map[string]string{"plan.md": "## One\n```sh\nif [ \"$A,$B,$C\" = sprite-value,push-value,push-value ]; then echo right; fi\n```\n"})
	job, _ := h.Push(repo, "plan.md", "--agent", "shell", "-s", "paint", "--env", "B=push-value", "--env", "C=first-value", "--env", "C=push-value")
	h.Run("", "cove", "job", "wait", job)
	if logs := h.Run("", "cove", "job", "logs", job); !strings.Contains(logs, "| right") {
		t.Errorf("the log is\n%s", logs)
	}
	show := h.Run("", "cove", "job", "show", job, "--json")
	if got := h.Job(job).EnvNames; !slices.Equal(got, []string{"B", "C"}) || strings.Contains(show, "-value") {
		t.Errorf("the job is %s", show)
	}
}
