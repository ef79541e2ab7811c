package trials

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestSoakPostgres runs PostgreSQL as a service of a sprite, and a client here, through
// cove proxy. After every kill, each row that the client was told is committed is there.
// It needs PostgreSQL on this machine, and runs only in make soak.
func TestSoakPostgres(t *testing.T) {
	if !e2e.Soak() {
		return
	}
	psql := need.Program(t, "psql", "postgresql")
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is right
	if len(found) == 0 {
		need.Missing(t, "there is no PostgreSQL below /usr/lib/postgresql", "apt-get install postgresql")
	}
	bin := filepath.Dir(found[0])
	h := e2e.NewHost(t)
	h.Serve(nil, "--idle", "0")
	tr := newTrial(h, "postgres", 18)
	h.Sh("postgres", bin+"/initdb -D ~/db -U ada -A trust -E UTF8 --no-locale")
	h.Run("", "cove", "service", "put", "-s", "postgres", "db", "--", bin+"/postgres", "-D", "/home/sprite/db", "-k", "/tmp", "-h", "127.0.0.1")
	p := &proxied{trial: tr, psql: psql}
	p.proxy()
	p.ready()
	p.query("create table rows(id serial primary key, body text not null)")
	tr.each(rounds(1), func(int) *worker {
		p.ready()
		return p.insert()
	}, func(acked []string) {
		p.ready()
		out := p.query("select count(*) from rows where body = repeat(id::text, 50) and id in (" + strings.Join(acked, ",") + ")")
		if out != fmt.Sprint(len(acked)) {
			t.Errorf("%d rows were acknowledged, and there are %s of them", len(acked), out)
		}
		p.query("create extension if not exists amcheck; select bt_index_check('rows_pkey', true)")
	})
}

// proxied is a trial whose client runs here.
type proxied struct {
	*trial
	psql string
	port string
}

// proxy starts cove proxy, which survives the kills.
func (p *proxied) proxy() {
	p.T.Helper()
	cmd := p.Command("", "cove", "proxy", "-s", p.sprite, "0:5432")
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.T.Fatal(err)
	}
	p.T.Cleanup(func() {
		_ = cmd.Process.Kill() // it is cut off
		_ = cmd.Wait()
	})
	line := make([]byte, 200)
	n, err := out.Read(line)
	port := regexp.MustCompile(`^127\.0\.0\.1:(\d+) ->`).FindSubmatch(line[:n])
	if err != nil || port == nil {
		p.T.Fatalf("the proxy says %q, %v", line[:n], err)
	}
	p.port = string(port[1])
	go func() { _, _ = io.Copy(io.Discard, out) }()
}

func (p *proxied) client(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, p.psql, append([]string{"-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", p.port, "-U", "ada", "-d", "postgres"}, args...)...)
}

// ready waits until the database answers.
func (p *proxied) ready() {
	p.T.Helper()
	var said []byte
	defer func() {
		if p.T.Failed() {
			p.T.Logf("psql: %s", said)
		}
	}()
	e2e.Await(p.T, "the database", func() bool {
		ctx, cancel := context.WithTimeout(p.T.Context(), e2e.LastResort)
		defer cancel()
		var err error
		said, err = p.client(ctx, "-c", "select 1").CombinedOutput()
		return err == nil
	})
}

func (p *proxied) query(sql string) string {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(p.T.Context(), e2e.LastResort)
	defer cancel()
	out, err := p.client(ctx, "-c", sql).CombinedOutput()
	if err != nil {
		p.T.Fatalf("%s: %v: %s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

// insert starts a client that commits rows, one after another, and prints their numbers.
func (p *proxied) insert() *worker {
	p.T.Helper()
	w := &worker{ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.T.Context()))
	cmd := p.client(ctx)
	cmd.Stdin = strings.NewReader(strings.Repeat("insert into rows(body) values(repeat(currval('rows_id_seq')::text, 50)) returning id;\n", 200_000))
	cmd.Stdout, cmd.Stderr = &w.Acks, &w.said
	if err := cmd.Start(); err != nil {
		p.T.Fatal(err)
	}
	w.end = func(context.Context) { cancel() }
	go func() { w.err = cmd.Wait(); close(w.ended) }()
	return w
}
