package trials

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// rounds returns how many rounds a trial has: in make soak a hundred or COVE_SOAK_ROUNDS,
// in make test few.
func rounds(few int) int {
	if !e2e.Soak() {
		return few
	}
	if n, err := strconv.Atoi(os.Getenv("COVE_SOAK_ROUNDS")); err == nil {
		return n
	}
	return 100
}

// A trial changes the disk of a sprite without end, while processes are killed and
// checkpoints are made. The program inside prints a line for each change that was
// reported to it as done. The test keeps those lines outside: all of their changes must
// be there afterwards.
type trial struct {
	*e2e.Host
	sprite string
	rng    *rand.Rand
	past   func(context.Context) // called after each strike, before the sprite is used; nil: nothing
}

func newTrial(h *e2e.Host, sprite string, seed uint64) *trial {
	h.T.Helper()
	tr := &trial{Host: h, sprite: sprite, rng: rand.New(rand.NewPCG(seed, 0x7a1a1))}
	h.Run("", "cove", "create", sprite, "--idle", "0")
	h.T.Cleanup(func() {
		if !h.T.Failed() {
			return
		}
		files, _ := filepath.Glob(filepath.Join(h.Data, "run", "*", "*")) // the pattern is right
		for _, file := range files {
			if name := filepath.Base(file); name == "shim.log" || name == "sandbox.json" {
				text, _ := os.ReadFile(file)
				h.T.Logf("%s:\n%s", file, text)
			}
		}
	})
	return tr
}

// worker is a running program of a trial.
type worker struct {
	e2e.Acks
	end   func(context.Context)
	said  bytes.Buffer // its errors; read only once ended is closed
	ended chan struct{}
	err   error
}

func (w *worker) hasEnded() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// alone is the head of each Python program of a trial. With it, a second program waits
// until the first has ended.
const alone = `
import fcntl, os, subprocess, sys
os.umask(0o022)
only = open('only', 'w'); fcntl.flock(only, fcntl.LOCK_EX)
def done(what): print(what, flush=True)
`

// work starts a Python program in the sprite.
func (tr *trial) work(program string, args ...string) *worker {
	tr.T.Helper()
	w := &worker{ended: make(chan struct{})}
	cmd := tr.Client().Sprite(tr.sprite).Command("python3", append([]string{"-c", alone + program}, args...)...)
	cmd.Stdout, cmd.Stderr = &w.Acks, &w.said
	if err := cmd.Start(); err != nil {
		tr.T.Fatal(err)
	}
	w.end = func(ctx context.Context) {
		_, _ = tr.Client().Sprite(tr.sprite).Kill(ctx, cmd.SessionID(), sprites.SIGKILL, 10*time.Second) // it may have ended
	}
	go func() { w.err = cmd.Wait(); close(w.ended) }()
	return w
}

// stop ends a program, even if its connection is lost.
func (tr *trial) stop(w *worker) {
	tr.T.Helper()
	ctx, cancel := context.WithTimeout(tr.T.Context(), e2e.LastResort)
	defer cancel()
	w.end(ctx)
	select {
	case <-w.ended:
	case <-ctx.Done():
		tr.T.Fatalf("the program in %s does not end", tr.sprite)
	}
}

// inside runs a Python program in the sprite to its end and returns its output.
func (tr *trial) inside(program string, args ...string) string {
	tr.T.Helper()
	ctx, cancel := context.WithTimeout(tr.T.Context(), e2e.LastResort)
	defer cancel()
	cmd := tr.Client().Sprite(tr.sprite).CommandContext(ctx, "python3", append([]string{"-c", alone + program}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		tr.T.Fatalf("%s: %v\n%s", tr.sprite, err, said.String())
	}
	return out.String()
}

// trialVictims are the processes that a strike may kill.
var trialVictims = []string{"server", "shim", "sandbox", "server and shim", "server and sandbox"}

// kill kills the victims with -9, and has a server started if there is none.
func (tr *trial) kill(victims string) {
	tr.T.Helper()
	server := tr.PID()
	for one := range strings.SplitSeq(victims, " and ") {
		for _, pid := range (e2e.FaultCase{Victim: one}).Victims(tr.Host, server) {
			_ = e2e.Signal(pid, syscall.SIGKILL) // it may have ended
		}
	}
	if strings.Contains(victims, "server") {
		e2e.Await(tr.T, "the server's end", func() bool { return syscall.Kill(server, 0) != nil })
		tr.Run("", "cove", "server", "start") // starts the next one, if a command that waited has not
	}
}

// strike does one thing to the sprite while its program works.
func (tr *trial) strike(w *worker) (what string) {
	tr.T.Helper()
	victims := trialVictims[tr.rng.IntN(len(trialVictims))]
	change := [][]string{nil, nil, {"checkpoint", "create", "-s", tr.sprite}, {"checkpoint", "create", "--memory", "-s", tr.sprite}, {"suspend", tr.sprite}}[tr.rng.IntN(5)]
	what = strings.Join(change, " ")
	if strings.HasPrefix(what, "suspend") {
		tr.stop(w) // a sprite in use does not sleep
	}
	switch {
	case change == nil:
		tr.kill(victims)
		return "kill " + victims
	case tr.rng.IntN(2) == 0:
		tr.Run("", "cove", change...)
		return what
	}
	_, ended := tr.Background("", "cove", change...)
	over := make(chan struct{})
	go func() { _, _ = ended(); close(over) }() // it may be cut off
	until := len(w.Lines()) + tr.rng.IntN(5)
	e2e.Await(tr.T, "the moment of a kill", func() bool {
		select {
		case <-over:
			return true
		default:
			return w.hasEnded() || len(w.Lines()) >= until
		}
	})
	tr.kill(victims)
	e2e.Await(tr.T, what, func() bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	})
	return what + ", meanwhile kill " + victims
}

// each runs rounds: a program works, and is struck after some changes. Then check gets the
// changes that were acknowledged to it.
func (tr *trial) each(n int, start func(round int) *worker, check func(acked []string)) {
	tr.T.Helper()
	total := 0
	for round := range n {
		w := start(round)
		until := 1 + tr.rng.IntN(30)
		e2e.Await(tr.T, fmt.Sprintf("%d changes", until), func() bool { return w.hasEnded() || len(w.Lines()) >= until })
		if w.hasEnded() {
			tr.T.Fatalf("round %d: the program ended: %v\n%s", round, w.err, w.said.String())
		}
		what := tr.strike(w)
		if tr.past != nil {
			tr.past(tr.T.Context())
		}
		e2e.Await(tr.T, "the sprite after "+what, func() bool {
			_, code := tr.Try("", "cove", "exec", "-s", tr.sprite, "true")
			return code == 0
		})
		tr.stop(w)
		acked := w.Lines()
		total += len(acked)
		check(acked)
		if tr.T.Failed() {
			tr.T.Fatalf("round %d, after %s", round, what)
		}
	}
	tr.T.Logf("%d changes in %d rounds", total, n)
}

// TestSoakSQLite commits rows to a database, with both kinds of journal. After every
// kill, each committed row is there, and the database is whole.
func TestSoakSQLite(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil, "--idle", "0")
	tr := newTrial(h, "sqlite", 12)
	tr.rows(rounds(1))
}

// rows is the trial of SQLite.
func (tr *trial) rows(n int) {
	tr.T.Helper()
	tr.each(n, func(round int) *worker {
		return tr.work(`
import sqlite3
db = sqlite3.connect('rows.db', isolation_level=None)
db.execute('pragma journal_mode=' + sys.argv[1]); db.execute('pragma synchronous=full')
db.execute('create table if not exists rows(id integer primary key, body text)')
n = db.execute('select coalesce(max(id), 0) from rows').fetchone()[0]
while True:
    n += 1
    db.execute('insert into rows values(?, ?)', (n, str(n) * 100)); done(n)
`, []string{"delete", "wal"}[round%2])
	}, func(acked []string) {
		out := tr.inside(`
import sqlite3
db = sqlite3.connect('rows.db')
print(*db.execute('pragma integrity_check').fetchone())
print(*db.execute('select count(*), max(id), sum(body != replace(hex(zeroblob(50)), "0", id)) from rows').fetchone())
print(*db.execute('select id from rows where id in (%s)' % ','.join(sys.argv[1:])).fetchall().__len__().__str__().split())
`, acked...)
		var count, most, wrong, found int
		if _, err := fmt.Sscanf(out, "ok\n%d %d %d\n%d\n", &count, &most, &wrong, &found); err != nil || count != most || wrong != 0 || found != len(acked) {
			tr.T.Errorf("the database: %v, %q; %d rows were acknowledged, the last %v", err, out, len(acked), acked[len(acked)-1:])
		}
	})
}

// TestSoakCommits commits to a git repository in a loop. After every kill each commit made
// is there, and git finds nothing wrong.
func TestSoakCommits(t *testing.T) {
	if !e2e.Soak() { // a minute of make test's fifteen; TestSoakSQLite is there
		return
	}
	h := e2e.NewHost(t)
	h.Serve(nil, "--idle", "0")
	tr := newTrial(h, "commits", 13)
	tr.each(rounds(1), func(int) *worker {
		return tr.work(`
import glob
def git(*args): return subprocess.run(('git', '-C', 'repo') + args, check=True, capture_output=True, text=True).stdout.strip()
os.makedirs('repo', exist_ok=True)
if not os.path.exists('repo/.git/HEAD'): git('init', '-q', '-b', 'main')
for lock in glob.glob('repo/.git/**/*.lock', recursive=True): os.unlink(lock) # of the git that was killed
n = len(git('rev-list', '--all').split())
while True:
    n += 1
    with open('repo/%d.txt' % (n % 17), 'w') as f: f.write(str(n) * n)
    git('add', '-A'); git('-c', 'user.name=Ada', '-c', 'user.email=ada@example.org', 'commit', '-q', '--allow-empty', '-m', str(n))
    done(git('rev-parse', 'HEAD'))
`)
	}, func(acked []string) {
		out := tr.inside(`
def git(*args): return subprocess.run(('git', '-C', 'repo') + args, capture_output=True, text=True)
f = git('fsck', '--full', '--strict')
if f.returncode: print('fsck:', f.stdout, f.stderr)
have = set(git('rev-list', 'HEAD').stdout.split())
print('lost:', [c for c in sys.argv[1:] if c not in have])
`, acked...)
		if out != "lost: []\n" {
			tr.T.Errorf("the repository: %s", out)
		}
	})
}

// changes is a chain of system calls on a few names. Each call follows from its number
// and the present files. The calls make, rename over one another, change and remove
// files, folders and symbolic links. The same numbers in another folder give the same
// tree. There are no hard links: a write after a checkpoint makes two files of them, as
// docs/limits.md says.
const changes = `
import hashlib, random, shutil, stat
names = [d + n for d in ('', 'a/', 'b/', 'a/c/') for n in 'abcdef']
def change(root, n):
    r = random.Random(n)
    p, q = (os.path.join(root, r.choice(names)) for _ in range(2))
    kind = r.choice(['file'] * 3 + ['folder'] * 3 + ['symlink', 'symlink'] + ['rename'] * 6 + ['remove', 'remove', 'rmdir', 'write', 'write', 'truncate', 'mode'])
    plain = lambda p: stat.S_ISREG(os.lstat(p).st_mode)
    try:
        if kind == 'file': os.close(os.open(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        elif kind == 'folder': os.mkdir(p)
        elif kind == 'symlink': os.symlink('to-%d' % n, p)
        elif kind == 'rename': os.rename(p, q)
        elif kind == 'remove': os.unlink(p)
        elif kind == 'rmdir': os.rmdir(p)
        elif kind == 'write' and plain(p):
            fd = os.open(p, os.O_WRONLY | os.O_APPEND); os.write(fd, b'%d\n' % n); os.close(fd)
        elif kind == 'truncate' and plain(p): os.truncate(p, n % 9)
        elif kind == 'mode' and not os.path.islink(p): os.chmod(p, r.choice([0o755, 0o700, 0o711]))
    except OSError: pass
def begin(root):
    if os.path.exists(root) and tree(root).count('\n') > 80: shutil.rmtree(root)
    os.makedirs(root, exist_ok=True)
def tree(root):
    lines = []
    for d, dirs, files in os.walk(root):
        dirs.sort()
        for name in sorted(dirs + files):
            p = os.path.join(d, name); st = os.lstat(p); what = ''
            if stat.S_ISLNK(st.st_mode): what = os.readlink(p)
            elif stat.S_ISREG(st.st_mode): what = '%d %s' % (st.st_size, hashlib.md5(open(p, 'rb').read()).hexdigest())
            lines.append('%s %o %s\n' % (os.path.relpath(p, root), st.st_mode, what))
    return ''.join(lines)
`

// TestSoakRenames makes the changes in a sprite and in a folder of this machine. After every
// kill the sprite's tree is the folder's after one of the changes, and none that was
// acknowledged is missing.
func TestSoakRenames(t *testing.T) {
	if !e2e.Soak() { // a minute of make test's fifteen; TestSoakSQLite is there
		return
	}
	python := need.Program(t, "python3", "python3")
	h := e2e.NewHost(t)
	h.Serve(nil, "--idle", "0")
	tr := newTrial(h, "renames", 14)
	next := 0
	tr.each(rounds(1), func(int) *worker {
		return tr.work(changes+`
import time
begin('tree')
n = int(sys.argv[1])
while True: change('tree', n); done(n); n += 1; time.sleep(0.002) # for the model, below, to keep up
`, fmt.Sprint(next))
	}, func(acked []string) {
		h.Write("got", tr.inside(changes+"print(tree('tree'), end='')"))
		// After a kill of the server, the program goes on for a while without a listener.
		out := h.Run("", python, "-c", "import os, sys\nos.umask(0o022)\n"+changes+`
begin('model')
first, told = int(sys.argv[1]), int(sys.argv[2])
got, n = open('got').read(), first
while n < told: change('model', n); n += 1
want = tree('model')
while tree('model') != got and n < told + 50000: change('model', n); n += 1
print(n if tree('model') == got else 'lost: the tree is\n%sand after change %d was\n%s' % (got, told - 1, want))
`, fmt.Sprint(next), fmt.Sprint(next+len(acked)))
		if _, err := fmt.Sscan(out, &next); err != nil {
			t.Error(out)
		}
	})
}
