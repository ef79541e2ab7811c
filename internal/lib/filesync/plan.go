package filesync

import (
	"math"
	"path"
)

// A row is one path, as it was left by the last sync and as it is at both ends.
type row struct {
	path          string
	base          *known // nil: not of the last sync
	local, remote *Entry // nil: not there
}

// eachRow goes through three sorted readings side by side.
func eachRow(base *reading[known], local, remote *reading[Entry], do func(row) error) error {
	for {
		b, okB, err := base.peek()
		if err != nil {
			return err
		}
		l, okL, err := local.peek()
		if err != nil {
			return err
		}
		r, okR, err := remote.peek()
		if err != nil {
			return err
		}
		if !okB && !okL && !okR {
			return nil
		}
		var w row
		least := func(ok bool, name string) {
			if ok && (w.path == "" || comparePaths(name, w.path) < 0) {
				w.path = name
			}
		}
		if okB {
			least(true, b.entry.Path)
		}
		if okL {
			least(true, l.Path)
		}
		if okR {
			least(true, r.Path)
		}
		if okB && b.entry.Path == w.path {
			w.base, base.has = b, false
		}
		if okL && l.Path == w.path {
			w.local, local.has = l, false
		}
		if okR && r.Path == w.path {
			w.remote, remote.has = r, false
		}
		if err := do(w); err != nil {
			return err
		}
	}
}

// holds reports whether a side's file is known to have the base's content.
func holds(e *Entry, b *known, was func(*known) stamp) bool {
	return e != nil && b != nil && e.Type == File && b.entry.Type == File && was(b).holds(e.stamp())
}

func localStamp(b *known) stamp  { return b.local }
func remoteStamp(b *known) stamp { return b.remote }

// questions asks what can't be told from the manifests alone. resolved says that
// conflicts will be decided: then both versions must be known.
func (w row) questions(resolved bool, local, remote func(question) error) error {
	isFile := func(e *Entry) bool { return e != nil && e.Type == File }
	holdsL, holdsR := holds(w.local, w.base, localStamp), holds(w.remote, w.base, remoteStamp)
	ask := func(e, other *Entry, holds, otherHolds bool) bool {
		switch {
		case !isFile(e) || holds:
			return false
		case w.base == nil || w.base.entry.Type != File:
			return other != nil && (resolved || isFile(other) && other.Size == e.Size)
		}
		return !otherHolds || e.Size == w.base.entry.Size
	}
	// A side whose manifest lacks the path may have it and ignore it.
	if w.local == nil && w.base != nil {
		if err := local(question{path: w.path, exist: true}); err != nil {
			return err
		}
	} else if ask(w.local, w.remote, holdsL, holdsR) {
		if err := local(question{path: w.path, stamp: w.local.stamp()}); err != nil {
			return err
		}
	}
	if w.remote == nil && w.base != nil {
		return remote(question{path: w.path, exist: true})
	}
	if ask(w.remote, w.local, holdsR, holdsL) {
		return remote(question{path: w.path, stamp: w.remote.stamp()})
	}
	return nil
}

// side is what is known of a path at one end.
type side struct {
	entry  *Entry
	hash   Hash
	hashed bool // hash is known
	hidden bool // it is not in the manifest, and there all the same
	state  state
}

func (w row) localSide(a *answer) side  { return sideOf(w.local, w.base, localStamp, a) }
func (w row) remoteSide(a *answer) side { return sideOf(w.remote, w.base, remoteStamp, a) }

// sideOf puts together what a manifest and an answer say.
func sideOf(e *Entry, b *known, was func(*known) stamp, a *answer) side {
	s := side{entry: e}
	switch {
	case holds(e, b, was):
		s.hash, s.hashed = b.hash, true
	case a != nil && a.what == answerHash:
		s.hash, s.hashed = a.hash, true
	case a != nil && a.what == answerThere:
		s.hidden = true
	}
	switch {
	case e == nil && b == nil:
		s.state = absent
	case e == nil:
		s.state = deleted
	case b != nil && s.is(&b.entry, b.hash):
		s.state = same
	default:
		s.state = changed
	}
	return s
}

// is reports whether a side has an entry of that kind and content.
func (s *side) is(e *Entry, h Hash) bool {
	if s.entry == nil || s.entry.Type != e.Type {
		return false
	}
	switch e.Type {
	case File:
		return s.entry.Size == e.Size && s.entry.Mode == e.Mode && s.hashed && s.hash == h
	case Link:
		return s.entry.Target == e.Target
	}
	return true
}

// verdict is what is done about a row, and what it was decided by.
func (w row) verdict(l, r *side, o options, merges bool) action {
	source, target := l, r
	if o.verb == Pull {
		source, target = r, l
	}
	f := facts{base: w.base != nil, source: source.state, target: target.state, merges: merges}
	if l.entry != nil && r.entry != nil {
		f.equal = l.is(r.entry, r.hash) && (r.entry.Type != File || r.hashed)
		f.retyped = l.entry.Type != r.entry.Type || w.base != nil && w.base.entry.Type != l.entry.Type
	}
	return decide(f, o)
}

// result is what becomes of a path in the new base.
type result struct {
	what  byte
	known known
}

// The kinds of result.
const (
	resultKnown   byte = iota // known is the new record
	resultWritten             // the target's stamp, and the hash of what was sent, are still to come
	resultChmod               // the target's stamp is
)

func encodeResult(e *enc, r result) {
	e.byte(r.what)
	encodeKnown(e, r.known)
}

func decodeResult(d *dec) (r result, err error) {
	r.what = d.byte()
	r.known, err = decodeKnown(d)
	return r, err
}

// A planner turns rows into operations, and into results for the new base.
type planner struct {
	opts    options
	merged  map[string]*mergedText // texts that merge, by path
	removes *spool[op]
	puts    *spool[op]
	merges  *spool[op] // after them, because their content comes from elsewhere
	results *spool[result]
	report  *Report
	bytes   int64 // of content that will be sent

	candidates []string // paths whose texts may merge
	guard      *ruleGuard
	before     *leftBefore // nil: what was left out before is not asked
	risky      func(name string) string

	rmdirs  []op     // folders to delete once what is in them is
	pending []*Entry // folders of the source that the target lacks, and that nothing has asked for
	blocked string   // a folder of the source's that is none at the target
}

// mergedText is the outcome of a merge.
type mergedText struct {
	file string // on the host
	size int64
}

// add plans one row.
func (p *planner) add(w row, l, r side) error {
	if err := p.leave(w.path); err != nil {
		return err
	}
	if l.hidden || r.hidden {
		return p.remain(w)
	}
	m := p.merged[w.path]
	act := w.verdict(&l, &r, p.opts, m != nil)
	source, target := l, r
	if p.opts.verb == Pull {
		source, target = r, l
	}
	if p.blocked != "" && below(w.path, p.blocked) && (act == actTake || act == actBeside) {
		act = actConflict
	}
	if held, err := p.guarded(w, act, &source, &target); held || err != nil {
		return err
	}
	if p.opts.verb == Pull && !p.opts.reset && m == nil && mergeable(w, &l, &r) {
		p.candidates = append(p.candidates, w.path)
	}
	if source.entry != nil && source.entry.Type == Dir && (target.entry == nil || target.entry.Type != Dir) && act != actTake {
		p.hold(source.entry, target.entry)
	}
	switch act {
	case actNothing:
		return p.remain(w)
	case actNewer, actMissing:
		p.report.leftAlone(act, w.path)
		return p.remain(w)
	case actConflict:
		p.report.conflict(w.path, source.state, target.state, p.opts.verb)
		return p.remain(w)
	case actForget:
		return nil
	case actAdopt:
		return p.adopt(&l, &r)
	case actDelete:
		p.report.Deleted.add(w.path)
		return p.remove(target.entry)
	case actTake:
		return p.take(&source, &target)
	case actMerge:
		return p.merge(w.path, m, &source, &target)
	case actBeside:
		if err := p.beside(&source); err != nil {
			return err
		}
		fallthrough
	case actKeep:
		p.report.Resolved.add(w.path)
		return p.acknowledge(&source)
	}
	return nil
}

// mergeable reports whether both sides of a row are files that grew from one.
func mergeable(w row, l, r *side) bool {
	return w.base != nil && w.base.entry.Type == File && l.state == changed && r.state == changed &&
		l.entry.Type == File && r.entry.Type == File && l.hashed && r.hashed && l.hash != r.hash &&
		max(l.entry.Size, r.entry.Size, w.base.entry.Size) <= maxText
}

// leave ends folders that the next path is not in.
func (p *planner) leave(name string) error {
	for n := len(p.rmdirs); n > 0 && !below(name, p.rmdirs[n-1].entry.Path); n-- {
		if err := p.removes.add(p.rmdirs[n-1]); err != nil {
			return err
		}
		p.rmdirs = p.rmdirs[:n-1]
	}
	for n := len(p.pending); n > 0 && !below(name, p.pending[n-1].Path); n-- {
		p.pending = p.pending[:n-1]
	}
	return nil
}

// end is called after the last row.
func (p *planner) end() error { return p.leave("") }

// hold remembers a folder that the target lacks. It is made if something comes into it.
func (p *planner) hold(source, target *Entry) {
	if target != nil {
		p.blocked = source.Path
		return
	}
	dir := *source
	p.pending = append(p.pending, &dir)
}

// remain leaves the base as it is for a path.
func (p *planner) remain(w row) error {
	if w.base == nil {
		return nil
	}
	return p.results.add(result{resultKnown, *w.base})
}

// adopt notes what both ends have.
func (p *planner) adopt(l, r *side) error {
	k := known{entry: *l.entry, hash: l.hash}
	if k.entry.Type == File {
		k.local, k.remote = l.entry.stamp(), r.entry.stamp()
	}
	return p.results.add(result{resultKnown, k})
}

// acknowledge makes the source's version the base without taking it.
func (p *planner) acknowledge(source *side) error {
	if source.entry == nil || source.entry.Type == File && !source.hashed {
		return nil
	}
	return p.results.add(result{resultKnown, p.knownOf(source)})
}

// knownOf is the record of the source's version, without the target's stamp.
func (p *planner) knownOf(source *side) known {
	k := known{entry: *source.entry, hash: source.hash}
	if k.entry.Type == File {
		if p.opts.verb == Push {
			k.local = source.entry.stamp()
		} else {
			k.remote = source.entry.stamp()
		}
	}
	return k
}

// remove deletes the target's version.
func (p *planner) remove(e *Entry) error {
	if e.Type == Dir {
		p.rmdirs = append(p.rmdirs, op{kind: opRmdir, entry: Entry{Path: e.Path, Type: Dir}, prior: *e})
		return nil
	}
	return p.removes.add(op{kind: opRemove, entry: Entry{Path: e.Path}, prior: *e})
}

// take puts the source's version at the target.
func (p *planner) take(source, target *side) error {
	e := *source.entry
	if target.entry == nil {
		p.report.Added.add(e.Path)
	} else {
		p.report.Modified.add(e.Path)
	}
	if e.Type != Dir {
		p.tell(e.Path)
		if was, err := p.before.had(e.Path); err != nil {
			return err
		} else if was {
			p.report.Unignored.add(e.Path)
		}
	}
	if err := p.parents(); err != nil {
		return err
	}
	o := op{kind: opPut, entry: e, from: e.Path}
	res := result{resultWritten, p.knownOf(source)}
	if e.Type == Dir {
		o.kind, res.what = opMkdir, resultKnown
	}
	if e.Type == Link {
		res.what = resultKnown
	}
	if target.entry != nil {
		switch {
		case target.entry.Type == File && e.Type == File && source.hashed && target.hashed && source.hash == target.hash:
			o.kind, o.prior, res.what = opChmod, *target.entry, resultChmod
		case target.entry.Type == Dir || e.Type == Dir:
			if err := p.remove(target.entry); err != nil {
				return err
			}
		default:
			o.prior = *target.entry
		}
	}
	if o.kind == opPut && e.Type == File {
		p.comes(e.Size)
	}
	if err := p.puts.add(o); err != nil {
		return err
	}
	return p.results.add(res)
}

// comes counts the content of a file. The sum of sizes that a sprite made up may overflow.
func (p *planner) comes(size int64) {
	if p.bytes += size; p.bytes < 0 {
		p.bytes = math.MaxInt64
	}
}

// tell notes a path that comes and that a person should look at.
func (p *planner) tell(name string) {
	if p.risky == nil || len(p.report.Risky) >= maxNames {
		return
	}
	if why := p.risky(name); why != "" {
		p.report.Risky = append(p.report.Risky, Risk{name, why})
	}
}

// parents makes the folders that the next path is in and the target lacks.
func (p *planner) parents() error {
	for _, dir := range p.pending {
		if err := p.puts.add(op{kind: opMkdir, entry: *dir}); err != nil {
			return err
		}
	}
	p.pending = nil
	return nil
}

// beside puts the source's version next to the target's.
func (p *planner) beside(source *side) error {
	if source.entry == nil || source.entry.Type == Dir {
		return nil
	}
	if err := p.parents(); err != nil {
		return err
	}
	e := *source.entry
	e.Path += theirSuffix
	p.report.Added.add(e.Path)
	if e.Type == File {
		p.comes(e.Size)
	}
	return p.puts.add(op{kind: opPut, entry: e, from: source.entry.Path})
}

// fromMerge is where the content of a merged text comes from.
const fromMerge = "\x00merge"

// merge puts a merged text at the target; the source's version is the new base.
func (p *planner) merge(name string, m *mergedText, source, target *side) error {
	p.report.Merged.add(name)
	p.tell(name)
	e := *target.entry
	e.Size, e.Mtime, e.Ctime = m.size, source.entry.Mtime, 0
	if err := p.merges.add(op{kind: opPut, entry: e, prior: *target.entry, from: fromMerge}); err != nil {
		return err
	}
	return p.acknowledge(source)
}

// Report is what a sync did, or would do.
type Report struct {
	Verb      Verb       `json:"verb"`
	Local     string     `json:"local"`
	Remote    string     `json:"remote"`
	DryRun    bool       `json:"dry_run"`
	Added     Names      `json:"added"`
	Modified  Names      `json:"modified"`
	Merged    Names      `json:"merged"`
	Deleted   Names      `json:"deleted"`
	Conflicts []Conflict `json:"conflicts"`
	Resolved  Names      `json:"resolved"` // conflicts that the policy decided for the target
	Newer     Names      `json:"newer"`    // changed at the target alone, and left
	Missing   Names      `json:"missing"`  // deleted at the target alone, and left
	Skipped   []Skipped  `json:"skipped"`
	Risky     []Risk     `json:"risky,omitempty"` // what came and is one to look at: the first thousand
	Held      Risks      `json:"held"`            // what stays in the sprite unless AcceptRisky is set
	Unignored Names      `json:"unignored"`       // files and links that Push sends, and that were left out until now
	Bytes     int64      `json:"bytes"`           // of content
	Sent      int64      `json:"sent"`            // over the connection, everything, both ways
	Seconds   float64    `json:"seconds"`
	Backup    string     `json:"backup,omitempty"` // for cove sync undo
	More      int64      `json:"more_conflicts,omitempty"`
}

// Risk is a path that can make something run on this machine.
type Risk struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Risks are some paths, and why. The list ends after the first thousand.
type Risks struct {
	Count int64  `json:"count"`
	Paths []Risk `json:"paths"`
}

func (r *Risks) add(name, why string) {
	r.Count++
	if len(r.Paths) < maxNames {
		r.Paths = append(r.Paths, Risk{name, why})
	}
}

// Names are some paths. The list ends after the first thousand.
type Names struct {
	Count int64    `json:"count"`
	Paths []string `json:"paths"`
}

// maxNames is how many names a report has of one kind.
const maxNames = 1000

func (n *Names) add(name string) {
	n.Count++
	if len(n.Paths) < maxNames {
		n.Paths = append(n.Paths, name)
	}
}

// Conflict is a path that both ends have changed.
type Conflict struct {
	Path   string `json:"path"`
	Local  string `json:"local"`  // what became of it here: changed, deleted, same
	Remote string `json:"remote"` // and there
}

func (s state) String() string { return [...]string{"absent", "same", "changed", "deleted"}[s&3] }

func (r *Report) conflict(name string, source, target state, verb Verb) {
	if len(r.Conflicts) >= maxNames {
		r.More++
		return
	}
	c := Conflict{name, source.String(), target.String()}
	if verb == Pull {
		c.Local, c.Remote = c.Remote, c.Local
	}
	r.Conflicts = append(r.Conflicts, c)
}

func (r *Report) leftAlone(act action, name string) {
	if act == actNewer {
		r.Newer.add(name)
	} else {
		r.Missing.add(name)
	}
}

// Changes is how many paths of the target are touched.
func (r *Report) Changes() int64 {
	return r.Added.Count + r.Modified.Count + r.Merged.Count + r.Deleted.Count
}

// skipFile counts a file that could not be read after all.
func (r *Report) skipFile(why, name string, size int64) {
	for i := range r.Skipped {
		if r.Skipped[i].Reason == why {
			r.Skipped[i].Count++
			return
		}
	}
	r.Skipped = append(r.Skipped, Skipped{Reason: why, Count: 1, Bytes: size, Biggest: []Named{{path.Clean(name), size}}})
}
