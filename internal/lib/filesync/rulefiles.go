package filesync

import (
	"crypto/sha256"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/gitignore"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

// maxRuleChanges is how many changes of ignore files one pull judges. It holds the rest.
const maxRuleChanges = 1000

// A ruleGuard keeps a sprite's ignore files from letting through what is ignored here. Without
// it, a sprite could empty a .gitignore. The next push would then send the files that the
// rules kept here, and a pull after it could delete them here.
type ruleGuard struct {
	files  map[string]bool   // further ignore files, by their paths below the root; true: no change of it comes
	held   map[string]string // why, by the paths of ignore files that stay in the sprite
	above  map[string]bool   // the folders that these are in
	judged map[string]Hash   // contents of ignore files that may come
	found  []ruleChange      // by the present plan
}

// ruleChange is a change of an ignore file that a plan makes here.
type ruleChange struct {
	act  action
	path string
	now  Entry // in the sprite; its type is None if it was deleted
}

// guardOf returns the guard of a session's plan; nil if it needs none. A folder that is empty
// here has nothing that a sprite's rules could let through.
func guardOf(s *session) (*ruleGuard, error) {
	if s.plan != nil && s.plan.guard != nil {
		s.plan.guard.found = nil
		return s.plan.guard, nil
	}
	if s.Verb != Pull || s.AcceptRisky || !s.localAt.Exists {
		return nil, nil
	}
	here := s.scanL.count > 0
	for _, k := range s.skipL.kinds {
		here = here || k.Reason != skipOwn && k.Reason != skipGit
	}
	if !here {
		return nil, nil
	}
	g := &ruleGuard{files: map[string]bool{}, held: map[string]string{}, above: map[string]bool{}, judged: map[string]Hash{}}
	for i, name := range slices.Concat(s.RuleFiles, s.FixedFiles) {
		names := []string{name}
		if real, err := filepath.EvalSymlinks(name); err == nil {
			names = append(names, real)
		}
		for _, name := range names {
			if rel, err := filepath.Rel(s.localAt.Root, name); err == nil && filepath.IsLocal(rel) {
				g.files[filepath.ToSlash(rel)] = i >= len(s.RuleFiles)
			}
		}
	}
	return g, nil
}

// isRules reports whether a path is that of an ignore file.
func (g *ruleGuard) isRules(name string) bool {
	switch safepath.Fold(path.Base(name)) {
	case ".gitignore", ".coveignore":
		return true
	}
	_, is := g.files[name]
	return is
}

// hold keeps an ignore file in the sprite.
func (g *ruleGuard) hold(name string) {
	g.held[name] = gitignore.Weaker
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		g.above[dir] = true
	}
}

// inHeld reports whether a path is in a folder that has come in place of an ignore file
// that is held.
func (g *ruleGuard) inHeld(name string) bool {
	for dir := path.Dir(name); dir != "." && len(g.held) > 0; dir = path.Dir(dir) {
		if g.held[dir] != "" {
			return true
		}
	}
	return false
}

// guarded leaves a row as it is if its change would bring an ignore file that is held. It
// notes the changes of other ignore files.
func (p *planner) guarded(w row, act action, source, target *side) (held bool, err error) {
	if p.guard == nil || act != actTake && act != actDelete && act != actMerge && act != actBeside {
		return false, nil
	}
	if why := p.guard.held[w.path]; why != "" && act != actBeside {
		p.report.Held.add(w.path, why)
		return true, p.remain(w)
	}
	switch {
	case p.guard.inHeld(w.path), act == actDelete && p.guard.above[w.path]:
		return true, p.remain(w)
	case act == actTake && source.entry.Type != Dir && p.guard.above[w.path]:
		p.report.Held.add(w.path, gitignore.Weaker)
		return true, p.remain(w)
	}
	if !p.guard.isRules(w.path) || act == actBeside {
		return false, nil
	}
	if len(p.guard.found) >= maxRuleChanges {
		p.report.Held.add(w.path, gitignore.Weaker)
		return true, p.remain(w)
	}
	change := ruleChange{act: act, path: strings.Clone(w.path), now: Entry{Path: w.path}}
	if act != actDelete {
		change.now = *source.entry
	}
	p.guard.found = append(p.guard.found, change)
	return false, nil
}

// holdRules judges the changes of ignore files that the plan makes. It reports whether it
// holds some of them: then the plan must be made again.
func holdRules(s *session, merged map[string]*mergedText) (held bool, err error) {
	g := s.plan.guard
	if g == nil || len(g.found) == 0 {
		return false, nil
	}
	t, err := openTree(s.localAt.Root)
	if err != nil {
		return false, err
	}
	defer t.close()
	for _, c := range g.found {
		if g.files[c.path] {
			g.hold(c.path)
			held = true
			continue
		}
		is, known, err := g.text(s, c, merged)
		if err != nil {
			return false, err
		}
		dir := path.Dir(c.path)
		if !known || gitignore.Weakens(t.readSmall(dir, path.Base(c.path)), is) {
			g.hold(c.path)
			held = true
		}
	}
	return held, nil
}

// text is the text that an ignore file will have here; known is false if that can't be told. A
// text from the sprite is remembered, because the file could differ when it is fetched again.
func (g *ruleGuard) text(s *session, c ruleChange, merged map[string]*mergedText) (text string, known bool, err error) {
	if c.act == actMerge {
		b, err := os.ReadFile(merged[c.path].file)
		return string(b), err == nil, err
	}
	if c.now.Type != File {
		return "", true, nil // git and the matcher follow no link
	}
	var content []byte
	switch {
	case c.now.Size > maxText:
		return "", false, nil
	case c.now.Size > 0:
		if content, err = s.fetchText(s.remote, &c.now); content == nil || err != nil {
			return "", false, err
		}
	}
	g.judged[c.path] = sha256.Sum256(content)
	if c.now.Mode&0o400 == 0 { // nobody but root can read it
		content = nil
	}
	return string(content), true, nil
}
