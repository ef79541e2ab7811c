package guest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/guest/spriteenv"
	"github.com/cove-dev/cove/sprites"
)

// Statement 104: a task holds the sprite running; expires; max 1 h; 201/409/200/204/404.
func TestTasks(t *testing.T) {
	m := start(t, &guest.Server{})
	activity := func() (a sprites.Activity) {
		t.Helper()
		m.must(json.Unmarshal([]byte(m.call("GET", "/v1/activity", "", 200)), &a))
		return a
	}
	if a := activity(); a.QuietSeconds != nil {
		t.Errorf("before anything ran it is quiet for %v", *a.QuietSeconds)
	}
	m.must(m.Command("true").Run())
	if a := activity(); a.QuietSeconds == nil || *a.QuietSeconds < 0 || *a.QuietSeconds > lastResort.Seconds() {
		t.Errorf("after a command the activity is %+v", a)
	}
	same(t, "no tasks", strings.TrimSpace(m.call("GET", "/v1/tasks", "", 200)), `{"tasks":[]}`)
	m.call("POST", "/v1/tasks", `{"name":"agent","expire":"30m"}`, 201)
	m.call("POST", "/v1/tasks", `{"name":"agent","expire":"30m"}`, 409)
	if a := activity(); len(a.Tasks) != 1 || a.Tasks[0] != "agent" || a.Sessions != 0 {
		t.Errorf("the activity is %+v", a)
	}
	get := func() (task sprites.Task) {
		t.Helper()
		m.must(json.Unmarshal([]byte(m.call("GET", "/v1/tasks/agent", "", 200)), &task))
		return task
	}
	for body, want := range map[string]time.Duration{
		`{"expire":300}`: 300 * time.Second, `{"expire":"5h"}`: time.Hour, `{"expire":1e99}`: time.Hour, `{"expire":"200"}`: 200 * time.Second, `{"expire":"1e9"}`: time.Hour, `{}`: time.Hour,
	} {
		m.call("PUT", "/v1/tasks/agent", body, 200)
		if left := time.Until(get().ExpiresAt); left > want || left < want/2 {
			t.Errorf("after %s it expires in %v", body, left)
		}
	}
	m.call("PUT", "/v1/tasks", `{"name":"other","expire":"1h"}`, 200)
	m.call("DELETE", "/v1/tasks/other", "", 204)
	m.call("DELETE", "/v1/tasks/other", "", 404)
	m.call("GET", "/v1/tasks/other", "", 404)
	for _, body := range []string{`{"name":""}`, `{"name":"a b"}`, `{"name":"a","expire":-1}`, `{"name":"a","expire":"soon"}`, `{"name":"a","expire":"0"}`, `{"name":"a","expire":"NaN"}`, `{"name":"a","expire":[]}`, `{`} {
		m.call("POST", "/v1/tasks", body, 400)
	}
	m.call("PUT", "/v1/tasks/agent", `{"expire":"10ms"}`, 200)
	for deadline := time.Now().Add(lastResort); len(activity().Tasks) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the task does not expire")
		}
		<-time.After(5 * time.Millisecond)
	}
	m.call("GET", "/v1/tasks/agent", "", 404)
	for i := range 300 {
		want := http.StatusCreated
		if i >= 256 {
			want = http.StatusTooManyRequests
		}
		m.call("POST", "/v1/tasks", `{"name":"t`+strings.Repeat("x", i%50)+string(rune('a'+i/50))+`"}`, want)
	}
}

// TestLocal: what programs inside may do at the socket.
func TestLocal(t *testing.T) {
	s := &guest.Server{Dir: t.TempDir()}
	m := start(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.ServeLocal(ctx) }()
	socket := filepath.Join(s.Dir, "api.sock")
	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		if code := spriteenv.Main(t.Context(), socket, args, &out, &errs); code != want {
			t.Errorf("sprite-env %q: code %d, want %d: %s %s", args, code, want, &out, &errs)
		}
		return out.String() + errs.String()
	}
	for deadline := time.Now().Add(lastResort); spriteenv.Main(t.Context(), socket, []string{"info"}, &strings.Builder{}, &strings.Builder{}) != 0; {
		if time.Now().After(deadline) {
			t.Fatal("nobody is at the socket")
		}
		<-time.After(5 * time.Millisecond)
	}
	contains := func(got string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%q is not in %q", w, got)
			}
		}
	}
	local := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer local.CloseIdleConnections()
	inside := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://sprite/v1/services"+path, strings.NewReader(body))
		m.must(err)
		resp, err := local.Do(req)
		m.must(err)
		text, err := io.ReadAll(resp.Body)
		m.must(errors.Join(err, resp.Body.Close()))
		return resp.StatusCode, string(text)
	}
	if code, text := inside("PUT", "/grab", `{"cmd":"id","user":"root"}`); code != http.StatusBadRequest || !strings.Contains(text, "user can't be set from inside") {
		t.Errorf("a user of choice: %d: %s", code, text)
	}
	// Nor can a program inside run anything as that user, or read its variables.
	m.stream("PUT", "/v1/services/theirs?duration=0s", `{"cmd":"sleep","args":["100000"],"user":"0","env":{"KEY":"hidden-value"}}`)
	for _, call := range [][3]string{
		{"PUT", "/theirs", `{"cmd":"id"}`}, {"DELETE", "/theirs", ""}, {"POST", "/theirs/start", ""}, {"POST", "/theirs/stop", ""}, {"POST", "/theirs/restart", ""}, {"POST", "/signal", `{"name":"theirs","signal":"TERM"}`},
	} {
		if code, text := inside(call[0], call[1], call[2]); code != http.StatusBadRequest || !strings.Contains(text, "a user of its own") {
			t.Errorf("%q: %d: %s", call, code, text)
		}
	}
	for _, path := range []string{"", "/theirs"} {
		if code, text := inside("GET", path, ""); code != http.StatusOK || !strings.Contains(text, `"theirs"`) || strings.Contains(text, "hidden-value") {
			t.Errorf("GET %s: %d: %s", path, code, text)
		}
	}
	if got := m.call("GET", "/v1/services/theirs", "", 200); !strings.Contains(got, "hidden-value") || !strings.Contains(got, "sleep") {
		t.Errorf("from outside: %s", got)
	}
	m.call("DELETE", "/v1/services/theirs", "", 204)
	// follows runs it with more and more time, until it says what is wanted.
	follows := func(want int, says []string, undo []string, args ...string) {
		t.Helper()
		longEnough(t, 500*time.Millisecond, func(d time.Duration) bool {
			var out, errs strings.Builder
			code := spriteenv.Main(t.Context(), socket, slices.Concat([]string{"services"}, args, []string{"--duration", d.String()}), &out, &errs)
			got := out.String() + errs.String()
			if code == want && !slices.ContainsFunc(says, func(w string) bool { return !strings.Contains(got, w) }) {
				return true
			}
			t.Logf("sprite-env services %q in %v: code %d: %s", args, d, code, got)
			if len(undo) > 0 {
				run(0, undo...)
			}
			return false
		})
	}
	follows(0, []string{`"started"`, `up b`, `"complete"`}, []string{"services", "delete", "web"}, "create", "web", "--cmd", "sh", "--args", "-c,echo up $A; exec sleep 1000", "--env", "A=b")
	contains(run(0, "services", "list"), `"name": "web"`)
	contains(run(0, "services", "get", "web"), `"status": "running"`)
	follows(0, []string{`"stopped"`, `"started"`}, nil, "restart", "web")
	contains(run(0, "services", "signal", "web", "CONT"))
	contains(run(0, "services", "logs", "web", "--lines", "1"), "up b\n")
	contains(run(0, "services", "stop", "web"))
	contains(run(1, "services", "stop", "web"), "not running")
	contains(run(0, "services", "delete", "web"))
	contains(run(1, "services", "get", "web"), "service not found")
	contains(run(0, "services", "create", "web", "--cmd", "sleep", "--args", "1000", "--no-stream"))
	contains(run(1, "services", "create", "web", "--cmd", "sleep", "--args", "2000"), "service web exists", "--replace")
	contains(run(0, "services", "get", "web"), `"1000"`)
	contains(run(0, "services", "create", "web", "--replace", "--cmd", "sleep", "--args", "2000", "--no-stream"))
	contains(run(0, "services", "get", "web"), `"2000"`)
	fails := []string{"service broken does not run: exit 1", "sprite-env services logs broken"}
	follows(1, fails, []string{"services", "delete", "broken"}, "create", "broken", "--cmd", "false")
	follows(1, fails, nil, "start", "broken")
	follows(1, fails, nil, "restart", "broken")
	contains(run(2, "services", "create", "web"), "--cmd is missing")
	contains(run(2, "services", "get"), "takes 1 arguments")
	contains(run(2, "services", "nothing"), "unknown command")
	contains(run(0, "tasks", "create", "build", "--expire", "30m"), `"name":"build"`)
	contains(run(1, "tasks", "create", "build"), "task build exists")
	contains(run(0, "tasks", "create", "short", "--expire", "3"), `"name":"short"`)
	contains(run(0, "tasks", "update", "long", "--expire", "3h"), `"name":"long"`, "ends after 1h0m0s", "sprite-env tasks update long")
	contains(run(0, "tasks", "update", "long", "--expire", "7200"), "ends after 1h0m0s")
	contains(run(0, "tasks", "update", "build"), `"name":"build"`)
	contains(run(0, "tasks", "list"), `"build"`)
	contains(run(0, "tasks", "delete", "build"))
	contains(run(0, "version"), sprites.Version)
	contains(run(0, "curl", "/v1/info"), sprites.Version)
	contains(run(1, "curl", "/v1/checkpoints"), "not available")
	contains(run(1, "curl", "/v1/exec"), "nothing at /v1/exec") // commands run where one is
	contains(run(2, "curl", "v1"), "slash")
	cancel()
	m.must(<-served)
}
