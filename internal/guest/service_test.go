package guest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// services starts a guest that keeps services in a folder of its own.
func services(t *testing.T) *machine {
	t.Helper()
	return start(t, &guest.Server{Dir: t.TempDir()})
}

// stream makes a call, and returns the events of its answer.
func (m *machine) stream(method, target, body string) []sprites.ServiceEvent {
	m.t.Helper()
	var events []sprites.ServiceEvent
	for line := range strings.Lines(m.call(method, target, body, 200)) {
		var e sprites.ServiceEvent
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		m.must(json.Unmarshal([]byte(line), &e))
		events = append(events, e)
	}
	if len(events) == 0 || events[len(events)-1].Type != sprites.ServiceEventComplete {
		m.t.Fatalf("%s %s: the last of %+v is not complete", method, target, events)
	}
	return events
}

func types(events []sprites.ServiceEvent) string {
	var all []string
	for _, e := range events {
		text := e.Type
		if e.Data != "" {
			text += " " + strings.TrimSpace(e.Data)
		}
		if e.ExitCode != nil {
			text += fmt.Sprint(" ", *e.ExitCode)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (m *machine) service(name string) sprites.Service {
	m.t.Helper()
	var d sprites.Service
	m.must(json.Unmarshal([]byte(m.call("GET", "/v1/services/"+name, "", 200)), &d))
	return d
}

// settle waits until a service has the wanted state.
func (m *machine) settle(name string, want func(sprites.Service) bool) sprites.Service {
	m.t.Helper()
	for deadline := time.Now().Add(lastResort); ; {
		d := m.service(name)
		if want(d) {
			return d
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("service %s stays %+v", name, d)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// TestHTTPPort: a caller that asks where the sprite's URL leads gets the state of the service.
// If the service can't recover in time, the answer comes at once.
func TestHTTPPort(t *testing.T) {
	m, began := services(t), time.Now()
	refused := func(wait, code string, messages ...string) (message string, took time.Duration) {
		t.Helper()
		began := time.Now()
		var e sprites.ErrorBody
		m.must(json.Unmarshal([]byte(m.call("POST", "/v1/http?wait="+wait, "", 503)), &e))
		same(t, "the code", e.Code, code)
		if !slices.Contains(messages, e.Message) {
			t.Errorf("the message: got %q, want one of %q", e.Message, messages)
		}
		return e.Message, time.Since(began)
	}
	m.stream("PUT", "/v1/services/shop?duration=0s", define("exec sleep 1000", `,"http_port":1`))
	m.settle("shop", running)
	refused("100ms", "service_not_listening", "nothing takes connections at port 1, the port of the service shop (running)")
	m.stream("PUT", "/v1/services/shop?duration=0s", define("exit 3", `,"http_port":1`))
	const failed, again = "nothing takes connections at port 1, the port of the service shop (failed: exit 3)", "nothing takes connections at port 1, the port of the service shop (running)"
	for wait := 1500 * time.Millisecond; ; wait = min(2*wait, 24*time.Second) { // its pauses have 30 s at most
		m.settle("shop", func(d sprites.Service) bool {
			next := d.State.NextRestartAt
			return next != nil && time.Until(*next) > wait+wait/5
		})
		message, d := refused(wait.String(), "service_not_listening", failed, again)
		if message == failed && d < wait*2/3 {
			break
		}
		if time.Since(began) > lastResort { // it was started again meanwhile, or this machine has much to do
			t.Fatalf("it takes %v to say that the service has failed, and says %q", d, message)
		}
	}
	m.call("DELETE", "/v1/services/shop", "", 204)
	other := start(t, &guest.Server{Dir: t.TempDir(), Defaults: &boot.Defaults{Account: boot.Account{Name: "root", Home: "/"}, Workdir: "/", HTTPPort: 1}})
	var e sprites.ErrorBody
	m.must(json.Unmarshal([]byte(other.call("POST", "/v1/http?wait=0s", "", 503)), &e))
	same(t, "an image's port", e.Message, "nothing takes connections at port 1")
	ln, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		return // the port is in use
	}
	m.must(ln.Close())
	refused("0s", "nothing_listens", "nothing takes connections at port 8080")
}

func running(d sprites.Service) bool { return d.State.Status == sprites.ServiceRunning }

func define(script string, more ...string) string {
	args, _ := json.Marshal([]string{"-c", script})
	return `{"cmd":"sh","args":` + string(args) + strings.Join(more, "") + "}"
}

// Statement 88: PUT service answers 200 NDJSON ending complete, within duration+1 s.
// Statement 90: list is a bare array; state.started_at absent or valid.
// Statement 125: service restart gives a new pid; logs honour lines, duration; env, dir, http_port come back.
func TestService(t *testing.T) {
	m := services(t)
	same(t, "no services", strings.TrimSpace(m.call("GET", "/v1/services", "", 200)), "[]")
	shop := define(`echo "$A in $PWD"; echo oops >&2; printf prompt; exec sleep 1000`, `,"env":{"A":"b c"},"dir":"`+m.dir+`","http_port":4100`)
	var events []sprites.ServiceEvent
	longEnough(t, time.Second, func(d time.Duration) bool {
		if events != nil {
			m.call("DELETE", "/v1/services/shop", "", 204)
		}
		began := time.Now()
		events = m.stream("PUT", "/v1/services/shop?duration="+d.String(), shop)
		if took := time.Since(began); took < d {
			t.Errorf("the answer took %v", took)
		}
		got := types(events)
		return strings.Contains(got, "started") && strings.Contains(got, "stdout b c in "+m.dir) && strings.Contains(got, "stderr oops") && strings.Contains(got, "stdout prompt")
	})
	files := events[len(events)-1].LogFiles
	log, err := os.ReadFile(files.Combined)
	if err != nil || !strings.Contains(string(log), "Z [stderr] oops\n") {
		t.Errorf("the log is %q, %v", log, err)
	}

	d := m.service("shop")
	if d.Cmd != "sh" || d.Env["A"] != "b c" || d.Dir != m.dir || d.HTTPPort != 4100 || !running(d) || d.State.PID == 0 || d.State.StartedAt == nil {
		t.Errorf("got %+v", d)
	}
	var list []sprites.Service
	m.must(json.Unmarshal([]byte(m.call("GET", "/v1/services", "", 200)), &list))
	if len(list) != 1 || list[0].Name != "shop" {
		t.Errorf("the list is %+v", list)
	}
	// The same definition again changes nothing; another one replaces the program.
	got := types(m.stream("PUT", "/v1/services/shop?duration=0s", shop))
	if !strings.Contains(got, "runs already") || m.service("shop").State.PID != d.State.PID {
		t.Errorf("the same definition gave %q", got)
	}
	if got = types(m.stream("GET", "/v1/services/shop/logs?lines=2", "")); !strings.HasSuffix(got, ", stdout prompt, complete") || strings.Count(got, ",") != 2 {
		t.Errorf("the log's end is %q", got)
	}
	longEnough(t, 200*time.Millisecond, func(d time.Duration) bool {
		got = types(m.stream("POST", "/v1/services/shop/restart?duration="+d.String(), ""))
		return strings.HasPrefix(got, "stopping, stopped 143, started")
	})
	if again := m.service("shop"); again.State.PID == d.State.PID || again.State.RestartCount != 0 {
		t.Errorf("after a restart: %+v", again.State)
	}
	longEnough(t, 200*time.Millisecond, func(d time.Duration) bool {
		m.stream("PUT", "/v1/services/shop?duration=0s", shop)
		return strings.Contains(types(m.stream("PUT", "/v1/services/shop?duration="+d.String(), define("echo other; exec sleep 1000"))), "stdout other")
	})
	// Sessions and services are two things.
	same(t, "sessions", strings.TrimSpace(m.call("GET", "/v1/exec", "", 200)), `{"count":0,"sessions":[]}`)
	m.call("DELETE", "/v1/services/shop", "", 204)
	m.call("DELETE", "/v1/services/shop", "", 404)
	m.call("GET", "/v1/services/shop", "", 404)
	if _, err := os.Stat(files.Combined); err != nil {
		t.Errorf("the log of a deleted service: %v", err)
	}
}

// Statement 89: a second http_port is a 409 with the text.
func TestServiceRefusals(t *testing.T) {
	m := services(t)
	m.stream("PUT", "/v1/services/a?duration=0s", define("sleep 1000", `,"http_port":80`))
	body := m.call("PUT", "/v1/services/b", define("true", `,"http_port":81`), 409)
	if !strings.Contains(body, "another service already has an HTTP port configured") {
		t.Errorf("got %q", body)
	}
	for name, body := range map[string]string{
		"signal": define("true"), "a%20b": define("true"), "-a": define("true"), strings.Repeat("a", 64): define("true"),
		"b": `{}`, "c": `{"cmd":"a\u0000"}`, "d": define("true", `,"needs":["nobody"]`), "e": `{"cmd":1}`, "f": "{",
		"g": define("true", `,"http_port":70000`), "h": define("true", `,"env":{"A=":"b"}`), "i": define("true", `,"needs":["i"]`),
	} {
		m.call("PUT", "/v1/services/"+name, body, 400)
	}
	m.stream("PUT", "/v1/services/needing?duration=0s", define("sleep 1000", `,"needs":["a"]`))
	m.call("PUT", "/v1/services/a", define("sleep 1000", `,"needs":["needing"]`), 400) // a circle
	m.call("DELETE", "/v1/services/a", "", 409)                                        // it is needed
	m.call("POST", "/v1/services/nobody/start", "", 404)
	m.call("POST", "/v1/services/nobody/restart", "", 404)
	m.call("GET", "/v1/services/nobody/logs", "", 404)
	m.call("GET", "/v1/services/a/logs?lines=x", "", 400)
	m.call("PUT", "/v1/services/a?duration=x", define("true"), 400)

	none := start(t, &guest.Server{})
	none.call("GET", "/v1/services", "", 501)
	none.call("PUT", "/v1/services/a", define("true"), 501)
}

// Statement 91: stop is sticky; kill makes it restart with restart_count+1.
// Statement 92: stop of a stopped service is 409, of an unknown one 404.
func TestServiceCrash(t *testing.T) {
	s := &guest.Server{Dir: t.TempDir()}
	m := start(t, s)
	up := filepath.Join(t.TempDir(), "up")
	m.stream("PUT", "/v1/services/a?duration=0s", define("trap '' TERM; touch "+up+"; while :; do sleep 1000; done"))
	trapped := func(d sprites.Service) bool {
		_, err := os.Stat(up)
		return running(d) && err == nil
	}
	first := m.settle("a", trapped)
	m.must(os.Remove(up))
	m.must(syscall.Kill(first.State.PID, syscall.SIGKILL))
	failed := m.settle("a", func(d sprites.Service) bool { return d.State.PID != first.State.PID })
	if failed.State.Status == sprites.ServiceFailed && (failed.State.NextRestartAt == nil || failed.State.Error != "exit 137") {
		t.Errorf("after a crash: %+v", failed.State)
	}
	second := m.settle("a", func(d sprites.Service) bool { return trapped(d) && d.State.PID != first.State.PID })
	same(t, "restarts", second.State.RestartCount, 1)

	// TERM is ignored: after the timeout it is ended by force, with its child.
	got := types(m.stream("POST", "/v1/services/a/stop?timeout=300ms", ""))
	same(t, "events", got, "stopping, stopped 137, complete")
	same(t, "status", m.service("a").State.Status, sprites.ServiceStopped)
	m.call("POST", "/v1/services/a/stop", "", 409)
	m.call("POST", "/v1/services/nobody/stop", "", 404)

	// A service that ends with success is not restarted. If it can't be started, it is
	// retried.
	longEnough(t, 500*time.Millisecond, func(d time.Duration) bool {
		got = types(m.stream("PUT", "/v1/services/b?duration="+d.String(), define("echo done")))
		if !strings.Contains(got, "exit 0") {
			m.call("DELETE", "/v1/services/b", "", 204)
			return false
		}
		same(t, "events", got, "started, stdout done, exit 0, complete")
		return true
	})
	same(t, "status", m.service("b").State.Status, sprites.ServiceStopped)
	longEnough(t, 200*time.Millisecond, func(d time.Duration) bool {
		return strings.Contains(types(m.stream("PUT", "/v1/services/c?duration="+d.String(), `{"cmd":"no-such-program"}`)), "command not found")
	})
	m.settle("c", func(d sprites.Service) bool { return d.State.RestartCount > 0 })
	m.stream("POST", "/v1/services/c/stop", "") // though just now it does not run

	// Another boot starts the services that nobody has stopped.
	m.stream("PUT", "/v1/services/d?duration=0s", define("sleep 1000"))
	before := m.settle("d", running)
	s.Stop(0)
	next := reborn(t, s)
	after := next.settle("d", running)
	if after.State.PID == before.State.PID {
		t.Error("a service lived on after its guest")
	}
	for _, name := range []string{"a", "c"} {
		same(t, "status of "+name, next.service(name).State.Status, sprites.ServiceStopped)
	}
}

// reborn is the guest of the next boot over the same disk.
func reborn(t *testing.T, s *guest.Server) *machine {
	t.Helper()
	next := &guest.Server{Dir: s.Dir}
	m := start(t, next)
	next.StartServices()
	return m
}

// Statement 128: every stream sends its headers at once. (Into a silence goes an empty line, every 20 s.)
func TestServiceStreamBegins(t *testing.T) {
	m := services(t)
	m.stream("PUT", "/v1/services/a?duration=0s", define("exec sleep 1000"))
	for _, call := range []string{"POST /v1/services/a/start?duration=1h", "GET /v1/services/a/logs?duration=1h", "PUT /v1/services/a?duration=1h"} {
		ctx, cancel := context.WithTimeout(t.Context(), lastResort)
		method, target, _ := strings.Cut(call, " ")
		req, err := http.NewRequestWithContext(ctx, method, m.url+target, strings.NewReader(define("exec sleep 1000")))
		m.must(err)
		resp, err := m.http.Do(req)
		if err != nil || resp.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%s: %v, %v", call, resp, err)
		}
		m.must(resp.Body.Close())
		cancel()
	}
}

// Statement 93: needs order on boot.
func TestServiceOrder(t *testing.T) {
	s := &guest.Server{Dir: t.TempDir()}
	m := start(t, s)
	m.stream("PUT", "/v1/services/c?duration=0s", define("exec sleep 1000"))
	m.stream("PUT", "/v1/services/b?duration=0s", define("exec sleep 1000", `,"needs":["c"]`))
	m.stream("PUT", "/v1/services/a?duration=0s", define("exec sleep 1000", `,"needs":["b"]`))
	m.settle("a", running)
	for _, name := range []string{"b", "c", "a"} {
		m.stream("POST", "/v1/services/"+name+"/stop", "")
	}
	inOrder := func(m *machine) {
		t.Helper()
		a := m.settle("a", running).State.StartedAt
		b, c := m.service("b").State.StartedAt, m.service("c").State.StartedAt
		if b == nil || c == nil || b.Before(*c) || a.Before(*b) {
			t.Errorf("c started at %v, b at %v, a at %v", c, b, a)
		}
	}
	m.stream("POST", "/v1/services/a/start?duration=0s", "") // and what it needs
	inOrder(m)
	s.Stop(time.Second)
	inOrder(reborn(t, s))
}

// TestServiceNeeded: services that wait for another one start as soon as it does. A caller
// that stops a service is told which ones need it.
func TestServiceNeeded(t *testing.T) {
	s := &guest.Server{Dir: t.TempDir()}
	m := start(t, s)
	m.stream("PUT", "/v1/services/db?duration=0s", define("exec sleep 1000"))
	m.stream("PUT", "/v1/services/app?duration=0s", define("exec sleep 1000", `,"needs":["db"]`))
	m.stream("PUT", "/v1/services/web?duration=0s", define("exec sleep 1000", `,"needs":["app"]`))
	m.settle("web", running)
	got := types(m.stream("POST", "/v1/services/db/stop?timeout=10m", ""))
	same(t, "events", got, "stopping service app needs it, and keeps running, stopping, stopped 143, complete")
	s.Stop(0)
	next := reborn(t, s)
	longEnough(t, 7*time.Second, func(d time.Duration) bool {
		// Its pauses get longer, up to 30 s.
		waits := next.settle("app", func(app sprites.Service) bool {
			return app.State.NextRestartAt != nil && time.Until(*app.State.NextRestartAt) > min(d, 25*time.Second)
		})
		next.stream("POST", "/v1/services/db/start?duration=0s", "")
		app := next.settle("app", running)
		if app.State.StartedAt.Before(*waits.State.NextRestartAt) {
			return true
		}
		t.Logf("app was started at %v, after its pause, which ended at %v", app.State.StartedAt, waits.State.NextRestartAt)
		next.stream("POST", "/v1/services/db/stop?timeout=10m", "")
		next.must(syscall.Kill(app.State.PID, syscall.SIGKILL)) // so it waits for db again
		return false
	})
	next.settle("web", running)
}

// TestServiceEnded: a service that ended by itself does not count as stopped.
func TestServiceEnded(t *testing.T) {
	m := services(t)
	stopped := func(d sprites.Service) bool { return d.State.Status == sprites.ServiceStopped }
	m.stream("PUT", "/v1/services/a?duration=0s", define("true"))
	if d := m.settle("a", stopped); d.State.ExitCode == nil || *d.State.ExitCode != 0 {
		t.Errorf("one that ended well is %+v", d.State)
	}
	m.stream("PUT", "/v1/services/b?duration=0s", define("exit 3"))
	failed := m.settle("b", func(d sprites.Service) bool { return d.State.Status == sprites.ServiceFailed })
	if failed.State.ExitCode == nil || *failed.State.ExitCode != 3 {
		t.Errorf("one that crashed is %+v", failed.State)
	}
	m.stream("PUT", "/v1/services/c?duration=0s", define("exec sleep 1000"))
	for _, name := range []string{"b", "c"} {
		m.stream("POST", "/v1/services/"+name+"/stop", "")
		if d := m.settle(name, stopped); d.State.ExitCode != nil {
			t.Errorf("one that was stopped is %+v", d.State)
		}
	}
}

// Statement 94: signal answers 204, 400, 404 or 409.
func TestServiceSignal(t *testing.T) {
	m := services(t)
	m.stream("PUT", "/v1/services/a?duration=0s", define("trap 'echo hangup' HUP; echo ready; while :; do sleep 0.05; done"))
	logged := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(lastResort); !strings.Contains(types(m.stream("GET", "/v1/services/a/logs", "")), want); {
			if time.Now().After(deadline) {
				t.Fatalf("the log has no %q", want)
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	logged("stdout ready")
	m.call("POST", "/v1/services/signal", `{"name":"a","signal":"SIGHUP"}`, 204)
	logged("stdout hangup")
	m.call("POST", "/v1/services/signal", `{"name":"a","signal":"NONE"}`, 400)
	m.call("POST", "/v1/services/signal", `{"name":"b","signal":"HUP"}`, 404)
	m.stream("POST", "/v1/services/a/stop", "")
	m.call("POST", "/v1/services/signal", `{"name":"a","signal":"HUP"}`, 409)
}

// TestServiceStopSignal: a service's own stop signal goes to its program alone, and not to
// that program's children. A malformed signal is refused.
func TestServiceStopSignal(t *testing.T) {
	m := services(t)
	out := filepath.Join(m.dir, "out")
	m.stream("PUT", "/v1/services/a?duration=0s", define(`trap 'echo hup >>`+out+`; exit 0' HUP; trap 'echo term >>`+out+`' TERM; sh -c 'trap "echo child HUP >>`+out+`" HUP; trap "echo child TERM >>`+out+`; exit" TERM; echo ready; while :; do sleep 0.05; done' & while :; do sleep 0.05; done`, `,"stop_signal":"SIGHUP"`))
	for deadline := time.Now().Add(lastResort); !strings.Contains(types(m.stream("GET", "/v1/services/a/logs", "")), "stdout ready"); {
		if time.Now().After(deadline) {
			t.Fatal("the service does not begin")
		}
		<-time.After(10 * time.Millisecond)
	}
	m.stream("POST", "/v1/services/a/stop?timeout=10m", "")
	said, err := os.ReadFile(out)
	if err != nil || string(said) != "hup\nchild TERM\n" {
		t.Errorf("it said %q, %v", said, err)
	}
	if d := m.service("a"); d.StopSignal != "SIGHUP" {
		t.Errorf("got %+v", d)
	}
	m.call("PUT", "/v1/services/b", define("true", `,"stop_signal":"NONE"`), 400)
	m.call("PUT", "/v1/services/b", define("true", `,"stop_signal":"SIGRTMIN+31"`), 400)
	m.stream("PUT", "/v1/services/b?duration=0s", define("true", `,"stop_signal":"SIGRTMIN+3"`))
}

// TestServiceUser: a service may run as another user. If there is no such user, the service's
// error says so.
func TestServiceUser(t *testing.T) {
	need.Root(t)
	m := services(t)
	m.stream("PUT", "/v1/services/a?duration=0s", define("cd /; echo I am $(id -u); exec sleep 1000", `,"user":"65534","dir":"/"`))
	m.settle("a", running)
	for deadline := time.Now().Add(lastResort); !strings.Contains(types(m.stream("GET", "/v1/services/a/logs", "")), "stdout I am 65534"); {
		if time.Now().After(deadline) {
			t.Fatal(types(m.stream("GET", "/v1/services/a/logs", "")))
		}
		<-time.After(10 * time.Millisecond)
	}
	m.stream("PUT", "/v1/services/b?duration=0s", define("true", `,"user":"nobody-of-that-name"`))
	m.settle("b", func(d sprites.Service) bool { return strings.Contains(d.State.Error, "no user") })
}

// Statement 95: no NDJSON line of 64 KB or more.
func TestServiceOutput(t *testing.T) {
	m := services(t)
	// Bytes that JSON writes as six each, without a line's end; then many lines.
	m.stream("PUT", "/v1/services/a?duration=0s", define(`head -c 100000 /dev/zero; echo; seq 20000; echo end >&2`))
	m.settle("a", func(d sprites.Service) bool { return d.State.Status == sprites.ServiceStopped })
	body := m.call("GET", "/v1/services/a/logs?lines=100000", "", 200)
	n, zeros := 0, 0
	for line := range strings.Lines(body) {
		if len(line) >= 64<<10 {
			t.Errorf("a line of %d bytes", len(line))
		}
		zeros += strings.Count(line, `\u0000`)
		n++
	}
	if zeros != 100000 || n < 20000 || !strings.Contains(body, `"19999\n"`) || !strings.Contains(body, `{"type":"stderr","data":"end\n"`) {
		t.Errorf("%d lines with %d zero bytes", n, zeros)
	}
}

// TestServiceLines: a line ends where the program has ended it, however slowly it comes, and
// whatever comes between.
func TestServiceLines(t *testing.T) {
	m := services(t)
	ended := func(d sprites.Service) bool { return d.State.Status == sprites.ServiceStopped }
	m.stream("PUT", "/v1/services/slow?duration=0s", define(`for i in $(seq 30); do printf aa; sleep .03; echo bb; sleep .03; done`))
	longEnough(t, 1500*time.Millisecond, func(d time.Duration) bool { // a prompt is told
		m.stream("PUT", "/v1/services/mixed?duration=0s", define("exec sleep 1000"))
		m.call("DELETE", "/v1/services/mixed", "", 204)
		live := types(m.stream("PUT", "/v1/services/mixed?duration="+d.String(), define(`printf pro; sleep 1; echo err >&2; echo mpt; printf last`)))
		return strings.Contains(live, "stdout pro, ")
	})
	m.settle("mixed", ended)
	m.settle("slow", ended)
	file := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(m.logs(name))
		m.must(err)
		return string(data)
	}
	same(t, "whole lines", strings.Count(file("slow"), "Z [stdout] aabb\n"), 30)
	same(t, "lines", strings.Count(file("slow"), "\n"), 30)
	for _, want := range []string{"Z [stdout] prompt\n", "Z [stderr] err\n", "Z [stdout] last\n"} {
		if got := file("mixed"); !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}

// logs is the file of a service's log.
func (m *machine) logs(name string) string {
	m.t.Helper()
	events := m.stream("GET", "/v1/services/"+name+"/logs?lines=0", "")
	return events[len(events)-1].LogFiles.Combined
}

// TestServiceLogsMeet: the end of the log and the new lines follow each other without a gap. A
// caller that asks for a number of lines gets that many, also while the service writes.
func TestServiceLogsMeet(t *testing.T) {
	m := services(t)
	m.stream("PUT", "/v1/services/a?duration=300ms", define(`i=0; while :; do for k in $(seq 200); do i=$((i+1)); echo $i; done; sleep 0.01; done`))
	for range 60 {
		before, line := 0, ""
		for _, e := range m.stream("GET", "/v1/services/a/logs?lines=5&duration=10ms", "") {
			var n int
			if e.Type != sprites.ServiceEventStdout {
				before, line = 0, "" // what came too fast to be read is told
				continue
			}
			if line += e.Data; !strings.HasSuffix(line, "\n") {
				continue // a line whose end is late is told in parts
			}
			_, err := fmt.Sscan(line, &n)
			m.must(err)
			line = ""
			if before > 0 && n != before+1 {
				t.Fatalf("after line %d comes %d", before, n)
			}
			before = n
		}
	}
	m.stream("PUT", "/v1/services/a?duration=300ms", define(`while :; do echo line; done`))
	for range 20 {
		same(t, "events of three lines", len(m.stream("GET", "/v1/services/a/logs?lines=3", "")), 4)
	}
}

// TestServiceDefinitions: a damaged file is left alone and spoils nothing else.
func TestServiceDefinitions(t *testing.T) {
	dir := t.TempDir()
	m := start(t, &guest.Server{Dir: dir})
	m.stream("PUT", "/v1/services/good?duration=0s", define("sleep 1000", `,"env":{"SECRET":"s"}`))
	st, err := os.Stat(filepath.Join(dir, "services", "good.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the definition's file is %v, %v", st, err)
	}
	m.stream("POST", "/v1/services/good/stop", "")
	m.must(errors.Join(
		os.WriteFile(filepath.Join(dir, "services", "bad.json"), []byte(`{"cmd":`), 0o600),
		os.WriteFile(filepath.Join(dir, "services", "signal.json"), []byte(`{"cmd":"true"}`), 0o600),
		os.Symlink("/dev/zero", filepath.Join(dir, "services", "endless.json"))))
	next := reborn(t, &guest.Server{Dir: dir})
	var list []sprites.Service
	next.must(json.Unmarshal([]byte(next.call("GET", "/v1/services", "", 200)), &list))
	if !slices.ContainsFunc(list, func(d sprites.Service) bool { return d.Name == "good" }) || len(list) != 1 {
		t.Errorf("the services are %+v", list)
	}
	_, err = os.Stat(filepath.Join(dir, "services", "bad.json"))
	next.must(err)
}

// TestServiceCircle: definitions that need each other, which only a person can have written,
// are left out. Only the services that need them fail.
func TestServiceCircle(t *testing.T) {
	s := &guest.Server{Dir: t.TempDir()}
	dir := filepath.Join(s.Dir, "services")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, needs := range map[string]string{"c1": "c2", "c2": "c1", "self": "self", "outside": "c1", "good": ""} {
		def := define("exec sleep 1000", `,"needs":["`+needs+`"]`)
		if needs == "" {
			def = define("exec sleep 1000")
		}
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(def), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := reborn(t, s)
	m.settle("good", running)
	m.settle("outside", func(d sprites.Service) bool { return strings.Contains(d.State.Error, "service not found") })
	for _, name := range []string{"c1", "c2", "self"} {
		m.call("POST", "/v1/services/"+name+"/start", "", 404)
	}
	m.stream("PUT", "/v1/services/c1?duration=0s", define("exec sleep 1000")) // it is mended so
}

// TestServiceManyNeeds: a service that several others need is started once.
func TestServiceManyNeeds(t *testing.T) {
	m := services(t)
	needs := []string{}
	for i := range 28 {
		list, _ := json.Marshal(needs)
		name := fmt.Sprintf("s%02d", i)
		m.stream("PUT", "/v1/services/"+name+"?duration=0s", define("exec sleep 1000", `,"needs":`+string(list)))
		needs = append(needs, name)
	}
	m.settle("s27", running)
}

// TestServiceEnds: no process of a service lives on when its guest has stopped.
func TestServiceEnds(t *testing.T) {
	s := &guest.Server{Dir: t.TempDir()}
	m := start(t, s)
	var pids []string
	longEnough(t, 200*time.Millisecond, func(d time.Duration) bool {
		m.stream("PUT", "/v1/services/a?duration="+d.String(), define("echo $$; sleep 1000 & echo $!; wait"))
		said := types(m.stream("GET", "/v1/services/a/logs", ""))
		pids = strings.Fields(said)
		return strings.Count(said, "stdout") == 2
	})
	s.Stop(time.Second)
	for _, text := range pids {
		var pid int
		if _, err := fmt.Sscan(strings.Trim(text, ","), &pid); err != nil {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && !strings.Contains(string(status), "State:\tZ") && !strings.Contains(string(status), "State:\tX") { // which nobody has waited for yet
			t.Errorf("process %d lives on", pid)
		}
	}
	m.call("PUT", "/v1/services/b", define("true"), http.StatusTooManyRequests)
}

// TestLargeServices: one definition, and all of a sprite together, are bounded. Definitions
// that are there already stay, and can be made smaller or deleted.
func TestLargeServices(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	service := func(bytes int) string {
		text, err := json.Marshal(sprites.Service{Cmd: "true", Args: []string{strings.Repeat("x", bytes)}})
		must(err)
		return string(text)
	}
	must(os.MkdirAll(filepath.Join(dir, "services"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "services", "old.json"), []byte(service(300_000)), 0o600)) // of an older version
	s := &guest.Server{Dir: dir}
	m := start(t, s)
	s.StartServices()
	refused := func(name, body string, says ...string) {
		t.Helper()
		answer := m.call("PUT", "/v1/services/"+name+"?duration=0s", body, 413)
		for _, text := range append(says, `"too_large"`, name) {
			if !strings.Contains(answer, text) {
				t.Errorf("%s: got %.300s, want %s", name, answer, text)
			}
		}
	}
	refused("large", service(70_000), "65536", "into a file")
	refused("quoted", service(0)[:len(service(0))-1]+`,"env":{"A":"`+strings.Repeat("<", 20_000)+`"}}`, "65536") // which is longer as it is answered
	n := 0
	for ; n < 12; n++ {
		m.call("PUT", fmt.Sprintf("/v1/services/s%d?duration=0s", n), service(60_000), 200)
	}
	refused("more", service(60_000), "1048576", "delete a service")
	m.call("PUT", "/v1/services/old?duration=0s", service(10), 200)
	m.call("PUT", "/v1/services/more?duration=0s", service(60_000), 200)
	m.call("DELETE", "/v1/services/s0", "", 204)
	if list := m.call("GET", "/v1/services", "", 200); len(list) > 2<<20 {
		t.Errorf("the list has %d bytes", len(list))
	}
}
