package jobs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// slowly is an agent whose installation takes a while. Each installation leaves a
// different file, which the agent commits.
const slowly = `name = "slowly"
version = "1"
argv = ["sh", "-c", "cp ~/installed . && git add -A && git commit -q -m 'Show it'", "{prompt_file}"]
install = [["sh", "-ec", "for i in 1 2 3 4; do head -c 16 /dev/urandom | od -An -tx1 >>~/installed; sleep 0.2; done"]]
setup = [["sh", "-c", "echo set up >>~/setup"]]
verify = ["test", "-s", "{home}/installed"]
`

// agentHost gives a host an agent (slowly) of that definition, and a repository.
func agentHost(h *e2e.Host, definition string) (repo string) {
	h.T.Helper()
	h.Write("home/.config/cove/agents/slowly.toml", definition)
	return h.Repository("repo", map[string]string{"plan.md": "Show it.\n"})
}

func installs(h *e2e.Host) []cove.AgentInstall {
	h.T.Helper()
	list, err := h.Client().Installs(h.T.Context())
	if err != nil {
		h.T.Fatal(err)
	}
	return list
}

// shown returns what the agent slowly found installed.
func shown(h *e2e.Host, repo, job string) string {
	h.T.Helper()
	if out, code := h.Try(repo, "cove", "pull", job, "--wait=10m", "--into", "none"); code != 0 {
		h.T.Fatalf("pull exited with %d: %s\n%s", code, out, h.Run("", "cove", "job", "logs", job))
	}
	return h.Run(repo, "git", "show", "refs/cove/"+job+"/head:installed")
}

// TestAgentInstall: an agent is installed once for all sprites that are made for its
// jobs. Two jobs at once wait for one installation, and the next job finds it. An
// existing sprite gets its own. An unused installation is removed, and so is a failed
// one.
func TestAgentInstall(t *testing.T) {
	h := e2e.NewHost(t)
	repo := agentHost(h, slowly)
	h.Serve(nil)
	var jobs [2]string
	var ended [2]func() (string, error)
	for i := range ended {
		_, ended[i] = h.Background(repo, "cove", "push", "plan.md", "--agent", "slowly", "--dirty", "ignore", "--json")
	}
	for i := range ended {
		out, err := ended[i]()
		if err != nil {
			t.Fatalf("push: %v: %s", err, out)
		}
		_, doc, _ := strings.Cut(out, "{") // after the output for people
		jobs[i] = e2e.JSONField(t, "{"+doc, "job")
	}
	first := shown(h, repo, jobs[0])
	if lines := strings.Count(first, "\n"); lines != 4 {
		t.Errorf("the installation was run %d times: %q", lines/4, first)
	}
	if got := shown(h, repo, jobs[1]); got != first {
		t.Errorf("two at once: %q and %q", first, got)
	}
	all := installs(h)
	if len(all) != 1 || all[0].Agent != "slowly" || all[0].Version != "1" || all[0].TookMS < 800 {
		t.Errorf("got %+v", all)
	}
	if list := h.Run("", "cove", "list"); strings.Contains(list, "install-") {
		t.Errorf("the sprite of the installation is listed: %s", list)
	}
	e2e.Await(t, "its size", func() bool { return installs(h)[0].Bytes > 0 })
	if list := h.Run("", "cove", "agent", "list"); !strings.Contains(list, "KiB, ") {
		t.Errorf("cove agent list: %s", list)
	}

	job, sprite := h.Push(repo, "plan.md", "--agent", "slowly", "--dirty", "ignore")
	if got := shown(h, repo, job); got != first {
		t.Errorf("the next one has %q", got)
	}
	if logs := h.Run("", "cove", "job", "logs", job); !strings.Contains(logs, "-- slowly 1 is from the shared installation "+all[0].Key[:12]) {
		t.Errorf("its log: %s", logs)
	}
	if got := h.Sh(sprite, "cat setup"); got != "set up\n" {
		t.Errorf("it was set up %q", got)
	}
	h.Run("", "cove", "create", "mine")
	job, _ = h.Push(repo, "plan.md", "--agent", "slowly", "--dirty", "ignore", "-s", "mine")
	if got := shown(h, repo, job); got == first || strings.Count(got, "\n") != 4 {
		t.Errorf("one's own sprite has %q", got)
	}

	// job gc removes an unused installation. The sprites that have it keep it.
	if out := h.Run("", "cove", "job", "gc"); strings.Contains(out, "slowly") {
		t.Errorf("it was used just now: %s", out)
	}
	if out := h.Run("", "cove", "job", "gc", "--older-than", "0", "--dry-run"); !strings.Contains(out, "slowly 1") || len(installs(h)) != 1 {
		t.Errorf("a dry run: %s", out)
	}
	h.Run("", "cove", "fork", sprite, "kept")
	h.Run("", "cove", "job", "gc", "--older-than", "0")
	if all := installs(h); len(all) != 0 {
		t.Errorf("left: %+v", all)
	}
	if got := h.Sh("kept", "cat installed"); got != first {
		t.Errorf("a sprite that began with it has %q", got)
	}
	job, _ = h.Push(repo, "plan.md", "--agent", "slowly", "--dirty", "ignore")
	if got := shown(h, repo, job); got == first {
		t.Error("it was not installed anew")
	}

	// One that fails is not kept, and the job says why.
	h.Write("home/.config/cove/agents/slowly.toml", strings.Replace(slowly, "for i in", "echo no such package; exit 3; for i in", 1))
	job, _ = h.Push(repo, "plan.md", "--agent", "slowly", "--dirty", "ignore")
	if out, code := h.Try("", "cove", "job", "wait", job); code == 0 {
		t.Errorf("a job without its agent: %s", out)
	}
	if logs := h.Run("", "cove", "job", "logs", job); !strings.Contains(logs, "-- slowly 1 is installed for this job alone: sh: ") || !strings.Contains(logs, "no such package") {
		t.Errorf("its log: %s", logs)
	}
	if all := installs(h); len(all) != 1 {
		t.Errorf("got %+v", all)
	}
}

// TestSoakInstall kills the server with -9 at each step of an installation. The next
// server has the installation or begins it anew, and the push that waited for it goes on.
// Nothing else is left. make test does one.
func TestSoakInstall(t *testing.T) {
	points := fault.InstallPoints
	if !e2e.Soak() {
		points = points[:1]
	}
	for _, point := range points {
		t.Run(string(point), func(t *testing.T) {
			h := e2e.NewHost(t)
			repo := agentHost(h, slowly)
			reached := filepath.Join(filepath.Dir(h.Home), "reached")
			h.Serve([]string{fault.Variable + "=" + string(point) + "=" + reached})
			_, ended := h.Background(repo, "cove", "push", "plan.md", "--agent", "slowly", "--dirty", "ignore")
			e2e.Await(t, "the point", func() bool {
				text, err := os.ReadFile(reached)
				pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
				return err == nil && pid > 0
			})
			if err := e2e.Signal(h.PID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			h.Run("", "cove", "server", "start")
			if out, err := ended(); err != nil {
				t.Fatalf("push: %v: %s", err, out)
			}
			jobs, err := h.Client().Jobs(t.Context())
			if err != nil || len(jobs) != 1 {
				t.Fatalf("got %+v, %v", jobs, err)
			}
			first := shown(h, repo, jobs[0].ID)
			if strings.Count(first, "\n") != 4 {
				t.Errorf("it has %q", first)
			}
			job, sprite := h.Push(repo, "plan.md", "--agent", "slowly", "--dirty", "ignore")
			if got := shown(h, repo, job); got != first || len(installs(h)) != 1 {
				t.Errorf("the next one has %q, of %+v", got, installs(h))
			}
			var list struct{ Jobs []cove.Job }
			if err := json.Unmarshal([]byte(h.Run("", "cove", "job", "list", "--json")), &list); err != nil {
				t.Fatal(err)
			}
			for _, j := range list.Jobs {
				h.Run("", "cove", "job", "rm", "--force", j.ID)
			}
			h.Try("", "cove", "rm", "--force", sprite)
			h.Run("", "cove", "job", "gc", "--older-than", "0", "--force")
			e2e.Await(t, "the end of what it had", func() bool {
				left, _ := filepath.Glob(filepath.Join(h.Data, "layers", "*")) // the pattern is right
				runs, _ := filepath.Glob(filepath.Join(h.Data, "run", "*"))
				return len(left)+len(runs) == 0
			})
		})
	}
}
