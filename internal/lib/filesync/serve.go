package filesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hello is the first request to an end.
type hello struct {
	Version int    `json:"version"`
	Root    string `json:"root"`            // the folder; relative to the home folder
	State   string `json:"state,omitempty"` // the user's folder for state; empty: the end finds it
	Write   bool   `json:"write"`           // the tree will be written to
	Look    bool   `json:"look"`            // nothing at all will be, not even what a dead process left
}

// helloAnswer describes an end.
type helloAnswer struct {
	Version int    `json:"version"`
	Root    string `json:"root"`
	Exists  bool   `json:"exists"`
	Free    int64  `json:"free"` // bytes of the disk that are free
}

// planHead begins a plan.
type planHead struct {
	ID   string `json:"id"` // the backup's
	Verb string `json:"verb"`
}

// undoHead asks to undo a backup; an empty id means the newest.
type undoHead struct {
	ID    string `json:"id"`
	NewID string `json:"new_id"`
}

// An end is one side of a sync: it has a tree, and does what it is asked. It runs
// beside its tree, on the host as in the sprite.
type end struct {
	c     conn
	hello hello
	root  string
	state string
	lock  *os.File
	since atomic.Pointer[locked] // whose lock it has
	work  *work                  // nil: the root has none yet

	step func(string) error // tests: the work's
	left func(string) error // nil, or told the paths that rules leave out

	head   planHead
	plan   *spool[op]
	stamps *spool[written]  // of files that were staged in new folders
	staged map[int64]staged // operations whose content is there already
	missed map[int64]bool   // operations whose content did not come
}

// Serve is an end of a sync over a stream of bytes, as `cove-guest sync` is. It returns when
// the other side closes its stream, or after the first error, which it reports to the other
// side. When ctx has ended, or the other side has been silent so long that it must be gone,
// Serve calls abandoned, which does not return. It never does so while the tree is being
// written to.
func Serve(ctx context.Context, r io.Reader, w io.Writer, abandoned func()) error {
	s, err := newStream(r, w)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	e := &end{c: s}
	go s.watch(ctx, done, e.wanted, abandoned)
	return e.serve(ctx)
}

func serve(ctx context.Context, c conn, step func(string) error) error {
	e := &end{c: c, step: step}
	return e.serve(ctx)
}

func (e *end) serve(ctx context.Context) error {
	c := e.c
	err := e.run(ctx)
	e.close()
	if err == nil || errors.Is(err, errCrash) {
		return err
	}
	_ = sendJSON(c, kindError, coded(e.where(), err)) // the other side may be gone
	return err
}

// where is the beginning of the end's errors.
func (e *end) where() string {
	if e.root == "" {
		return "sync"
	}
	return "sync " + e.root
}

func (e *end) close() {
	e.plan.close()
	e.stamps.close()
	if e.lock != nil {
		_ = e.lock.Close()
	}
}

func (e *end) run(ctx context.Context) error {
	f, err := e.c.recv()
	if err != nil {
		return noMore(err)
	}
	if err := parseJSON(f, kindHello, &e.hello); err != nil {
		return err
	}
	if err := e.greet(ctx); err != nil {
		return err
	}
	for {
		f, err := e.c.recv()
		if err != nil {
			return noMore(err)
		}
		if err := e.request(ctx, f); err != nil {
			return err
		}
	}
}

// noMore is nil if the other side has just ended, else err.
func noMore(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

func (e *end) request(ctx context.Context, f frame) error {
	switch f.kind {
	case kindScan:
		var rules Rules
		if err := parseJSON(f, kindScan, &rules); err != nil {
			return err
		}
		return e.scan(ctx, rules)
	case kindAsk:
		return e.answer(ctx)
	case kindPlan:
		return e.receivePlan(ctx, f)
	case kindFetch:
		return e.provide(ctx)
	case kindContent:
		return e.receive(ctx)
	case kindCommit:
		return e.commit(ctx)
	case kindUndo:
		return e.undo(ctx, f)
	case kindBackups:
		list, err := e.backups()
		if err != nil {
			return err
		}
		return sendJSON(e.c, kindDone, list)
	}
	return rejectedf("", "an unknown request %q", f.kind)
}

// greet finds the root, locks it, and completes or undoes what a dead process had begun.
func (e *end) greet(ctx context.Context) error {
	if e.hello.Version != version {
		return failedf(CodeFailed, hintUpdate, "the other side speaks version %d of the protocol, but this side version %d", e.hello.Version, version)
	}
	if err := e.locate(); err != nil {
		return err
	}
	how := syscall.LOCK_SH
	if e.hello.Write {
		how = syscall.LOCK_EX
	}
	if err := e.takeLock(ctx, how); err != nil {
		return err
	}
	answer := helloAnswer{Version: version, Root: e.root}
	info, err := os.Stat(e.root)
	switch {
	case err == nil && !info.IsDir():
		return failedf(CodeUsage, "", "%s is not a folder", e.root)
	case err == nil:
		answer.Exists = true
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if answer.Free, err = freeBytes(e.root); err != nil {
		return err
	}
	if e.work = findWork(e.state, e.root); e.work != nil {
		if err := e.settle(ctx); err != nil {
			return err
		}
	}
	return sendJSON(e.c, kindHello, answer)
}

// settle completes or undoes what a dead process had begun. If hello.Look forbids that, it
// returns an error.
func (e *end) settle(ctx context.Context) error {
	if e.step != nil {
		e.work.step = e.step
	}
	if e.hello.Look {
		if j, err := e.work.readJournal(); j != nil || err != nil {
			return errors.Join(err, failedf(CodeChanged, hintSettle, "a sync of %s was interrupted while it wrote", e.root))
		}
		return nil
	}
	if err := e.recover(ctx); err != nil {
		return err
	}
	return errors.Join(e.work.sweep(), e.work.prune())
}

// recover writes to the tree, so it has the lock for itself meanwhile: two ends that recover at
// once would undo each other's work. An end that only reads then shares the lock again.
func (e *end) recover(ctx context.Context) error {
	if e.hello.Write {
		return e.work.recover()
	}
	for {
		if j, err := e.work.readJournal(); j == nil || err != nil {
			return err
		}
		if err := e.takeLock(ctx, syscall.LOCK_EX); err != nil {
			return err
		}
		if err := e.work.recover(); err != nil { // there is nothing to do if another end was first
			return err
		}
		if err := e.takeLock(ctx, syscall.LOCK_SH); err != nil {
			return err
		}
	}
}

// locate finds where the root and the state folder are.
func (e *end) locate() error {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	e.root = e.hello.Root
	if !filepath.IsAbs(e.root) {
		e.root = filepath.Join(home, e.root)
	}
	if real, err := filepath.EvalSymlinks(e.root); err == nil {
		e.root = real
	}
	e.root = filepath.Clean(e.root)
	e.state = e.hello.State
	if e.state == "" {
		e.state = StateDir()
	}
	return nil
}

// StateDir is the user's folder for state that lasts between two runs of cove.
func StateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "cove")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "cove")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("cove-state-%d", os.Getuid()))
}

// lockPoll is the time between two tries to take a lock that someone else has.
const lockPoll = 50 * time.Millisecond

// takeLock waits for the right to the root: many may read (LOCK_SH), one may write (LOCK_EX).
// The end first lets go of the right that it has: two that both wait for more would wait for ever.
func (e *end) takeLock(ctx context.Context, how int) error {
	if e.lock != nil {
		if err := e.lock.Close(); err != nil {
			return err
		}
		e.lock = nil
	}
	dir := filepath.Join(e.state, "sync", "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	name := filepath.Join(dir, keyOf(e.root))
	f, err := lockFile(ctx, name, how)
	e.lock = f
	if err == nil {
		e.since.Store(&locked{name, time.Now()})
	}
	return err
}

// locked is a lock that is held.
type locked struct {
	name  string
	since time.Time
}

// wanted reports whether somebody waits for the lock that the end has.
func (e *end) wanted() bool {
	l := e.since.Load()
	if l == nil {
		return false
	}
	info, err := os.Stat(l.name + ".wanted")
	return err == nil && info.ModTime().After(l.since)
}

// lockFile waits for a lock, which closing the file ends.
func lockFile(ctx context.Context, name string, how int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		if err := os.WriteFile(name+".wanted", nil, 0o600); err != nil { // its time is what counts
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another sync of the same folder: %w", context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
}

// freeBytes is how much an ordinary user may write to the disk of a path. If the path does not
// exist, the nearest folder above it counts.
func freeBytes(name string) (int64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(name, &st)
		if err == nil {
			return int64(st.Bavail) * st.Bsize, nil
		}
		if err != unix.ENOENT || name == "/" || name == "." {
			return 0, err
		}
		name = filepath.Dir(name)
	}
}

// scan answers with the tree's entries.
func (e *end) scan(ctx context.Context, rules Rules) error {
	l := &lister{c: e.c}
	skipped := skips{}
	t, err := openTree(e.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		defer t.close()
		skipped, err = t.scanLeft(ctx, rules, func(v *Entry) error { return l.add(func(e *enc) { e.entry(v) }) }, e.left)
		if err != nil {
			return err
		}
	}
	if err := l.end(); err != nil {
		return err
	}
	return sendJSON(e.c, kindDone, skipped.list())
}

func (e *end) backups() ([]Backup, error) {
	if e.work == nil {
		return []Backup{}, nil
	}
	return e.work.backups()
}

// openWork makes the root and its work folder, if they are not there.
func (e *end) openWork() error {
	if !e.hello.Write {
		return rejectedf("", "a plan for a tree that is open for reading only")
	}
	if err := os.MkdirAll(e.root, 0o755); err != nil {
		return err
	}
	w, err := makeWork(e.state, e.root)
	if err != nil {
		return err
	}
	if e.step != nil {
		w.step = e.step
	}
	e.work = w
	return nil
}

// commit carries out the plan, and answers with the stamps of the files that it wrote.
func (e *end) commit(ctx context.Context) error {
	if e.plan == nil {
		return rejectedf("", "a commit without a plan")
	}
	b := Backup{ID: e.head.ID, Verb: e.head.Verb, Time: time.Now().UTC()}
	_, err := e.work.writeOps(b.ID, func(add func(*op) error) error {
		return e.eachPlanned(func(n int64, o *op) error {
			if e.missed[n] {
				return nil
			}
			b.count(o)
			return add(o)
		})
	})
	if err != nil {
		return err
	}
	return e.carryOut(ctx, b)
}

func (e *end) eachPlanned(do func(n int64, o *op) error) error {
	r, err := e.plan.read()
	if err != nil {
		return err
	}
	for n := int64(0); ; n++ {
		o, ok, err := r.peek()
		if !ok || err != nil {
			return err
		}
		if err := do(n, o); err != nil {
			return err
		}
		r.has = false
	}
}

func (e *end) carryOut(ctx context.Context, b Backup) error {
	if err := e.work.commit(ctx, b); err != nil {
		return err
	}
	if err := e.tellStamps(b.ID); err != nil {
		return err
	}
	if err := sendJSON(e.c, kindDone, b); err != nil {
		return err
	}
	// The sync is done. If this can't tidy up, the next look does.
	return errors.Join(e.work.unstage(), e.work.prune())
}

// tellStamps answers with the present stamp of each path that was written to.
func (e *end) tellStamps(id string) error {
	t, err := openTree(e.root)
	if err != nil {
		return err
	}
	defer t.close()
	now := time.Now()
	l := &lister{c: e.c}
	known, err := e.stamps.read()
	if err != nil {
		return err
	}
	err = e.work.eachOp(id, func(_ int64, o *op) error {
		if o.kind != opPut && o.kind != opChmod {
			return nil
		}
		v, ok, err := known.peek()
		if err != nil {
			return err
		}
		if ok && v.path == o.entry.Path { // what a folder's move does not change
			known.has = false
			return l.add(func(e *enc) { e.string(v.path); e.stamp(v.stamp) })
		}
		there, err := t.lstat(o.entry.Path)
		if err != nil {
			return err
		}
		if now.Sub(time.Unix(0, there.Mtime)).Abs() < racy || !o.left(&there) { // a second change could have the same time, or has come already
			there.Ctime = 0
		}
		return l.add(func(e *enc) { e.string(o.entry.Path); e.stamp(there.stamp()) })
	})
	return errors.Join(err, l.end())
}

// undo undoes a backup.
func (e *end) undo(ctx context.Context, f frame) error {
	var head undoHead
	if err := parseJSON(f, kindUndo, &head); err != nil {
		return err
	}
	list, err := e.backups()
	if err != nil {
		return err
	}
	if head.ID == "" && len(list) > 0 {
		head.ID = list[0].ID
	}
	for _, b := range list {
		if b.ID == head.ID {
			if err := errors.Join(checkID(head.NewID), e.openWork(), e.work.unstage()); err != nil {
				return err
			}
			undo, err := e.work.writeUndo(b.ID, head.NewID)
			if err != nil {
				return errors.Join(err, os.RemoveAll(e.work.backupDir(head.NewID)))
			}
			return e.carryOut(ctx, undo)
		}
	}
	return failedf(CodeNotFound, hintBackups, "there is no such backup of %s", e.root)
}

// receivePlan takes in the plan, and answers with the parts of it that are there already.
func (e *end) receivePlan(ctx context.Context, f frame) error {
	if err := errors.Join(parseJSON(f, kindPlan, &e.head), checkID(e.head.ID)); err != nil {
		return err
	}
	if err := e.openWork(); err != nil {
		return err
	}
	p, err := e.newPreparer()
	if err != nil {
		return err
	}
	defer p.close()
	n := int64(-1)
	err = recvList(e.c, func(d *dec) error {
		o, err := decodeOp(d)
		if err != nil {
			return err
		}
		n++
		return errors.Join(checkOp(&o), ctx.Err(), p.add(n, &o))
	})
	if err != nil {
		return err
	}
	return p.end()
}
