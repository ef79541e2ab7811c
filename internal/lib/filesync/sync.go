package filesync

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// Sync synchronizes a folder of this machine with one of a sprite, one way at a time. Local,
// Remote, Pair and Connect are required.
type Sync struct {
	Verb    Verb
	Local   string // a folder of this machine
	Remote  string // a folder of the sprite; relative to its user's home
	Pair    string // which backend, and which sprite of it
	As      string // what the folder of the sprite is remembered as; empty: Remote
	Connect func(ctx context.Context) (*Remote, error)

	Rules    Rules
	Policy   Policy // of conflicts; empty: Fail
	Reset    bool   // the target becomes what the source is, whatever it was
	NoDelete bool
	DryRun   bool
	MaxBytes int64  // of content in one sync; 0: as much as the disk holds
	State    string // the user's folder for state; empty: StateDir

	// Hold, if not nil, reports whether a file or link of the sprite stays there.
	Hold func(name string) bool

	// Risky, if not nil, says why a person should look at a file or link that Pull brings;
	// empty: no reason. The report lists these.
	Risky func(name string) string

	// AcceptRisky makes Pull also bring files that make or change a folder that git takes for
	// a repository. Otherwise these are an error of code risky, and nothing is changed. It
	// makes Pull also bring changes of ignore files that may let through what is ignored here.
	// Otherwise they stay in the sprite, and the report lists them as held.
	AcceptRisky bool

	// RuleFiles are further files of this machine, by their absolute paths, that have rules.
	// Pull judges their changes like those of a .gitignore.
	RuleFiles []string

	// FixedFiles are files of this machine, by their absolute paths. Unless AcceptRisky is
	// set, Pull holds every change of them, as one that may let through what is ignored here.
	FixedFiles []string

	// Merge merges two texts that grew from base; clean is false if it can't. It gets the
	// names of files with these texts. Nil: texts never merge.
	Merge func(ctx context.Context, ours, base, theirs string) (merged []byte, clean bool, err error)

	// Progress, if not nil, is called with the bytes of content sent so far, and their total.
	Progress func(done, total int64)

	// step is the local end's, for tests.
	step func(string) error
}

// Remote is a connection to the end in a sprite.
type Remote struct {
	R io.Reader
	W io.Writer

	// Close ends the far end, if it has not ended, and waits for that each time that it is
	// called. It returns the error that the far end died of.
	Close func() error
}

// A session is one sync under way.
type session struct {
	*Sync
	ctx    context.Context
	dir    string // of the pair, in the state folder
	tmp    string
	lock   *os.File
	local  *peer
	remote *peer
	stream *stream
	report *Report

	localAt, remoteAt helloAnswer

	scanL, scanR *spool[Entry]
	asking       sync.WaitGroup
	scanned      chan error // gets the end of the scan here
	skipL        leftOut    // by it, once that has come
	ansL, ansR   *spool[answer]
	plan         *planner
	planned      bool // the plan is whole: no question was left open

	hangUp func() // lets the sprite's end go

	sent    atomic.Int64 // bytes of content
	resumed []gotten     // texts, maybe, that did not come as a whole; maxResumed of them

	mu   sync.Mutex
	undo []func() // guarded by mu
}

// Run syncs. The report is not nil if the trees could be compared, even with an error. With an
// error nothing was changed at the target, unless the error says otherwise.
func (y *Sync) Run(ctx context.Context) (*Report, error) {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session{Sync: y, ctx: ctx}
	defer s.close()
	err := s.open(true)
	if err == nil {
		err = s.run()
	}
	if s.report != nil {
		s.report.Seconds = time.Since(began).Seconds()
		if s.stream != nil {
			s.report.Sent = s.stream.sent.Load() + s.stream.received.Load()
		}
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return s.report, err
}

func (s *session) close() {
	for _, f := range s.undo {
		defer f()
	}
}

// later makes the session call f at its end, the last one first.
func (s *session) later(f func()) {
	s.mu.Lock()
	s.undo = append(s.undo, f)
	s.mu.Unlock()
}

// pairDir is the folder with the state of a pair of folders.
func (y *Sync) pairDir() (string, error) {
	local, err := filepath.Abs(y.Local)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(local); err == nil {
		local = real
	}
	y.Local = local
	if y.State == "" {
		y.State = StateDir()
	}
	return filepath.Join(y.State, "sync", "pairs", keyOf(y.Pair, local, cmp.Or(y.As, y.Remote))), nil
}

// open takes the pair's lock, and starts both ends, to scan if scan is set. This machine's end
// starts while the sprite's is still being reached.
func (s *session) open(scan bool) error {
	var err error
	if s.dir, err = s.pairDir(); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return err
	} else if err != nil {
		return failedf(CodeDenied, "name a folder that can be written: XDG_STATE_HOME=DIR", "make the folder for the state of syncs: %v", err)
	}
	if s.lock, err = lockFile(s.ctx, filepath.Join(s.dir, "lock"), syscall.LOCK_EX); err != nil {
		return err
	}
	s.later(func() { _ = s.lock.Close() })
	if err := s.cleanTmp(); err != nil {
		return err
	}
	s.later(s.asking.Wait)
	if scan {
		if err := s.makeScans(); err != nil {
			return err
		}
	}
	dialed := s.dial()
	if err := s.startLocal(); err != nil {
		return err
	}
	if scan {
		s.asking.Go(func() {
			err := s.local.ask(kindScan, s.Rules)
			if err == nil {
				s.skipL.kinds, err = scanOf(s.local, s.scanL.add)
			}
			s.scanned <- err
		})
	}
	return s.startRemote(dialed, scan)
}

// makeScans makes the spools for both manifests.
func (s *session) makeScans() (err error) {
	newScan := func() (*spool[Entry], error) {
		sp, err := newSpool(s.tmp, func(e *enc, v Entry) { e.entry(&v) }, func(d *dec) (v Entry, err error) { d.entry(&v); return v, d.err })
		s.later(sp.close)
		return sp, err
	}
	if s.scanL, err = newScan(); err != nil {
		return err
	}
	if s.skipL.paths, err = newSpool(s.tmp, encodePath, decodePath); err != nil {
		return err
	}
	s.later(s.skipL.paths.close)
	s.scanned = make(chan error, 1)
	s.scanR, err = newScan()
	return err
}

// cleanTmp makes the folder for temporary files; the lock makes it ours.
func (s *session) cleanTmp() error {
	s.tmp = filepath.Join(s.dir, "tmp")
	if err := os.RemoveAll(s.tmp); err != nil {
		return err
	}
	s.later(func() { _ = os.RemoveAll(s.tmp) })
	return os.Mkdir(s.tmp, 0o700)
}

func (s *session) startLocal() error {
	far, near := newPipe()
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(s.ctx)
	go func() {
		defer close(done)
		defer far.close()
		e := &end{c: far, step: s.step, left: s.skipL.paths.add}
		_ = e.serve(ctx) // the peer gets the error
	}()
	s.local = newPeer(s.Local, near)
	s.later(func() { cancel(); near.close(); s.local.leave(); <-done })
	if err := s.sayHello(s.local, hello{Root: s.Local, State: s.State, Write: s.Verb == Pull && !s.DryRun}); err != nil {
		return err
	}
	return s.local.answered(kindHello, &s.localAt)
}

// dialed is the outcome of reaching the sprite.
type dialed struct {
	conn   *Remote // nil: it was not reached
	stream *stream
	err    error
}

// dial connects to the sprite. Its end gets no request before this machine's end has its lock.
// Until then only frames that keep the connection alive go there.
func (s *session) dial() <-chan dialed {
	out := make(chan dialed, 1)
	ctx, cancel := context.WithCancel(s.ctx)
	go func() {
		defer close(out)
		conn, err := s.Connect(ctx)
		if err != nil {
			out <- dialed{err: err}
			return
		}
		st, err := newStream(conn.R, conn.W)
		if err == nil {
			go st.keepAlive(ctx.Done())
		}
		out <- dialed{conn, st, err}
	}()
	s.later(func() {
		cancel()
		if d := <-out; d.conn != nil { // which nobody took
			_ = d.conn.Close()
		}
	})
	return out
}

// startRemote greets the sprite's end. If scan is set, it asks for the scan before the end has
// answered.
func (s *session) startRemote(out <-chan dialed, scan bool) error {
	d := <-out
	conn := d.conn
	if conn != nil {
		s.later(func() { _ = conn.Close() }) // what matters has been said
	}
	if d.err != nil {
		return cut(d.err)
	}
	s.stream = d.stream
	s.remote = newPeer("the sprite", s.stream)
	s.hangUp = func() { _ = conn.Close() }
	s.later(func() { _ = conn.Close(); s.remote.leave() })
	sent := make(chan error, 1)
	h := hello{Root: s.Remote, Write: s.Verb == Push && !s.DryRun}
	s.asking.Go(func() { // beside the answer: who has gone takes nothing more
		err := s.sayHello(s.remote, h)
		if err == nil && scan {
			err = s.remote.ask(kindScan, s.Rules)
		}
		sent <- err
	})
	err := s.remote.answered(kindHello, &s.remoteAt)
	if err == nil {
		err = <-sent
	}
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == CodeLost {
		why := conn.Close()
		if errors.Is(why, sprites.ErrNoExit) {
			return cut(why)
		}
		if why != nil {
			return failedf(CodeFailed, "if it runs an older cove-guest, let it boot again: cove suspend; cove wake", "start the sprite's half of the sync: %v", why)
		}
	}
	return err
}

// cut gives CodeLost to the error of a connection that ended before the sprite's end of a sync
// had begun. Other errors stay as they are.
func cut(err error) error {
	if errors.Is(err, sprites.ErrRemoved) || errors.Is(err, sprites.ErrSandboxEnded) { // there is nothing to come back to
		return err
	}
	if !errors.Is(err, sprites.ErrNoExit) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) &&
		!errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return &fail.Error{Code: CodeLost, Message: "the connection to the sprite was lost", Hint: hintResume, Err: err}
}

func (s *session) sayHello(p *peer, h hello) error {
	h.Version, h.Look = version, s.DryRun
	return p.ask(kindHello, h)
}

func (s *session) run() error {
	source := s.localAt
	if s.Verb == Pull {
		source = s.remoteAt
	}
	if !source.Exists {
		return failedf(CodeNotFound, "", "there is no folder %s to %s", source.Root, s.Verb)
	}
	s.report = &Report{Verb: s.Verb, Local: s.localAt.Root, Remote: s.remoteAt.Root, DryRun: s.DryRun, Conflicts: []Conflict{}}
	if err := s.look(); err != nil {
		return err
	}
	if err := s.decide(); err != nil {
		return err
	}
	if len(s.report.Conflicts) > 0 {
		return s.conflictError()
	}
	if err := s.checkRepositories(); err != nil {
		return err
	}
	if s.DryRun {
		s.report.Bytes = s.plan.bytes
		return nil
	}
	if s.report.Changes() == 0 {
		return s.saveBase(nil, nil, "")
	}
	if err := s.checkRoom(); err != nil {
		return err
	}
	return s.transfer()
}

// pathsHave is the beginning of a sentence about a number of paths.
func pathsHave[N int | int64](count N) string {
	if count == 1 {
		return "1 path has"
	}
	return fmt.Sprintf("%d paths have", count)
}

func (s *session) conflictError() error {
	count := int64(len(s.report.Conflicts)) + s.report.More
	hint := "choose: cove sync pull --on-conflict theirs; or ours (this machine's), or both"
	if s.Verb == Push {
		hint = "merge texts first: cove sync pull; or choose: cove sync push --on-conflict ours; or theirs (the sprite's), or both"
	}
	return failedf(CodeConflict, hint, "%s changed at both ends, %q first; nothing was changed", pathsHave(count), s.report.Conflicts[0].Path)
}

// spare is the space in bytes that stays free on a disk.
const spare = 64 << 20

// checkRoom compares what will come with the target's disk, and the caller's
// limit.
func (s *session) checkRoom() error {
	target := s.remoteAt
	if s.Verb == Pull {
		target = s.localAt
	}
	if s.MaxBytes > 0 && s.plan.bytes > s.MaxBytes {
		return failedf(CodeNoSpace, "leave some of it out: --exclude PATTERN; or allow more: --max-size SIZE", "the sync would send %d bytes, but %d are allowed; nothing was changed", s.plan.bytes, s.MaxBytes)
	}
	if s.plan.bytes > 0 && s.plan.bytes > target.Free-spare {
		return failedf(CodeNoSpace, "free some space, or leave some out: --exclude PATTERN", "the sync would send %d bytes to %s, but its disk has %d free; nothing was changed", s.plan.bytes, target.Root, target.Free)
	}
	return nil
}

// both does something at both ends at once.
func both(a, b func() error) error {
	var wg sync.WaitGroup
	var errA, errB error
	wg.Go(func() { errA = a() })
	errB = b()
	wg.Wait()
	return errors.Join(errA, errB)
}

func (s *session) baseName() string { return filepath.Join(s.dir, "base") }

// each goes through a reading.
func each[T any](r *reading[T], do func(T) error) error {
	for {
		v, ok, err := r.next()
		if !ok || err != nil {
			return err
		}
		if err := do(v); err != nil {
			return err
		}
	}
}

func newPlanner(tmp string, o options, report *Report) (*planner, error) {
	p := &planner{opts: o, report: report}
	var errs [4]error
	p.merges, errs[3] = newSpool(tmp, encodeOp, decodeOp)
	p.removes, errs[0] = newSpool(tmp, encodeOp, decodeOp)
	p.puts, errs[1] = newSpool(tmp, encodeOp, decodeOp)
	p.results, errs[2] = newSpool(tmp, encodeResult, decodeResult)
	return p, errors.Join(errs[:]...)
}

func (p *planner) close() {
	if p != nil {
		p.removes.close()
		p.puts.close()
		p.merges.close()
		p.results.close()
	}
}

// newID is the name of a new backup. It begins with the time, so that names sort.
func newID() string {
	return time.Now().UTC().Format("20060102T150405.000") + "-" + rand.Text()[:4]
}

// saveBase writes the new base: the results, with the hashes and stamps of the written files,
// which are known only now. It keeps the base before under the name of backup id, so that the
// sync can be undone.
func (s *session) saveBase(got *spool[gotten], applied *spool[written], id string) error {
	b, err := newBase(s.baseName())
	if err != nil {
		return err
	}
	if err := s.compose(b, got, applied); err != nil {
		b.drop()
		return err
	}
	old := ""
	if id != "" {
		old = filepath.Join(s.dir, "bases", id)
		if err := os.MkdirAll(filepath.Dir(old), 0o700); err != nil {
			return err
		}
	}
	if err := s.skipL.save(s.dir, s.Verb); err != nil {
		return err
	}
	if err := b.keep(old); err != nil {
		return err
	}
	return s.pruneBases()
}

// pruneBases keeps the old bases of the newest backups.
func (s *session) pruneBases() error {
	dir := filepath.Join(s.dir, "bases")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries[:max(0, len(entries)-keepBackups)] {
		err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
	}
	return err
}

func (s *session) compose(b *baseWriter, got *spool[gotten], applied *spool[written]) error {
	old, done, err := openBase(s.baseName())
	if err != nil {
		return err
	}
	defer done()
	hashes, err := got.read()
	if err != nil {
		return err
	}
	stamps, err := applied.read()
	if err != nil {
		return err
	}
	results, err := s.plan.results.read()
	if err != nil {
		return err
	}
	return each(results, func(r result) error {
		if r.what == resultKnown {
			return b.add(r.known)
		}
		name := r.known.entry.Path
		w, err := find(stamps, name, func(w *written) string { return w.path })
		if err != nil {
			return err
		}
		g := &gotten{hash: r.known.hash}
		if r.what == resultWritten && w != nil {
			if g, err = find(hashes, name, func(g *gotten) string { return g.path }); err != nil {
				return err
			}
		}
		if w == nil || g == nil { // it could not be read after all
			k, err := find(old, name, func(k *known) string { return k.entry.Path })
			if k == nil || err != nil {
				return err
			}
			return b.add(*k)
		}
		r.known.hash = g.hash
		if s.Verb == Push {
			r.known.remote = w.stamp
		} else {
			r.known.local = w.stamp
		}
		return b.add(r.known)
	})
}

// find goes on in a reading sorted by paths up to a path. It returns nil if the path is not
// there.
func find[T any](r *reading[T], name string, pathOf func(*T) string) (*T, error) {
	for {
		v, ok, err := r.peek()
		if err != nil || !ok {
			return nil, err
		}
		at := pathOf(v)
		if at == name {
			r.has = false
			return v, nil
		}
		if comparePaths(at, name) > 0 && neverTravels(filepath.Base(at)) == "" {
			return nil, nil
		}
		r.has = false
	}
}

// written is the target's record of a path that it wrote.
type written struct {
	path  string
	stamp stamp
}

func encodeWritten(e *enc, w written) { e.string(w.path); e.stamp(w.stamp) }

func decodeWritten(d *dec) (written, error) { return written{d.string(), d.stamp()}, d.err }

// gotten is the hash of a file that was sent.
type gotten struct {
	path string
	hash Hash
}

func (w row) String() string { return fmt.Sprintf("row %q", w.path) }
