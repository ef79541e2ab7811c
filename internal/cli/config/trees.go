package config

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/safepath"
)

// A Tree is a folder of a job's sprite that is pulled besides the commits, once the
// job has succeeded: one [[pull.sync]]. Only the person's file has them.
type Tree struct {
	From       string   `json:"from"` // in the sprite; relative to the job's clone
	To         string   `json:"to"`   // below the top of the work tree, slash-separated
	Include    []string `json:"include,omitempty"`
	Exclude    []string `json:"exclude,omitempty"`
	Repository string   `json:"repository,omitempty"` // the work tree that it is for; empty: each
	File       string   `json:"file"`                 // that it stands in
	Line       int      `json:"line"`
}

// treesKey is the key of the trees in a file.
const treesKey = "pull.sync"

// Patterns are the files that are left out, in the syntax of gitignore. With Include, these
// are all other files. Files that Exclude names are left out in any case.
func (t Tree) Patterns() []string {
	var list []string
	if len(t.Include) > 0 {
		list = append(list, "*", "!*/")
	}
	for _, p := range t.Include {
		list = append(list, "!"+p)
	}
	return append(list, t.Exclude...)
}

// Trees are the folders to pull into the work tree whose top is given.
func (s *Settings) Trees(top string) ([]Tree, error) {
	var list []Tree
	for _, t := range s.AllTrees {
		dir, err := Expand(t.Repository)
		if err != nil {
			return nil, err
		}
		if dir == "" || resolved(dir) == resolved(top) {
			list = append(list, t)
		}
	}
	return list, nil
}

// resolved is a path without links, as far as it exists.
func resolved(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return filepath.Clean(dir)
}

// trees reads [[pull.sync]].
func (p *parser) trees(value any) {
	if p.from == FromRepository {
		p.wrong(treesKey, "a repository may not set it: an agent's files would come into your tree without git", "set it in your own file; cove config show says where that is")
		return
	}
	list, ok := value.([]any)
	for i, item := range list {
		table, isTable := item.(map[string]any)
		if ok = ok && isTable; !ok {
			break
		}
		t := Tree{File: p.name, Line: p.line(treesKey)}
		if i < len(p.treeLines) {
			t.Line = p.treeLines[i]
		}
		p.tree(&t, table)
		p.doc.trees = append(p.doc.trees, t)
	}
	if !ok {
		p.wrong(treesKey, "it must be a list of tables", "write [[pull.sync]] and from, to below")
		return
	}
	p.overlaps()
}

func (p *parser) tree(t *Tree, table map[string]any) {
	wrong := func(field, message, hint string) {
		p.problems = append(p.problems, Problem{File: p.name, Line: t.Line, Key: treesKey + field, Message: message, Hint: hint})
	}
	texts := map[string]*string{"from": &t.From, "to": &t.To, "repository": &t.Repository}
	lists := map[string]*[]string{"include": &t.Include, "exclude": &t.Exclude}
	for field, value := range table {
		var err error
		if text := texts[field]; text != nil {
			var all []string
			if all, err = (setting{}).texts(value); err == nil {
				*text = all[0]
			}
		} else if list := lists[field]; list != nil {
			if *list, err = (setting{kind: folders}).texts(value); err != nil {
				err = errors.New(`it must be a list, such as ["*.whl"]`)
			}
			for _, pattern := range *list {
				if bad := checkPattern(pattern); bad != nil || field == "include" && pattern[0] == '!' {
					err = cmp.Or(bad, badPattern(pattern))
				}
			}
		} else {
			wrong("."+field, "there is no such key", nearest(field, []string{"from", "to", "include", "exclude", "repository"}))
			continue
		}
		if err != nil {
			wrong("."+field, err.Error(), "")
		}
	}
	if err := checkFrom(t.From); err != nil {
		wrong(".from", err.Error(), `such as from = "dist", in the job's clone`)
	}
	if err := checkTo(t.To); err != nil {
		wrong(".to", err.Error(), `such as to = "build/dist", below the top of the work tree`)
	}
	if err := (setting{kind: folders}).check(t.Repository); t.Repository != "" && err != nil {
		wrong(".repository", err.Error(), "")
	}
}

// checkPattern says that a text can't be one pattern of gitignore's syntax.
func checkPattern(pattern string) error {
	if strings.ContainsAny(pattern, "\r\n\x00") || strings.Trim(pattern, "/! ") == "" {
		return badPattern(pattern)
	}
	return nil
}

func badPattern(pattern string) error {
	return fmt.Errorf("%q is not a pattern of gitignore's syntax", pattern)
}

func checkFrom(from string) error {
	switch below := strings.TrimPrefix(from, "/"); {
	case from == "" || below == "":
		return errors.New("it does not name a folder of the sprite")
	case path.Clean(from) != from || safepath.Check(below) != nil:
		return fmt.Errorf("%q is not a folder in its shortest form", from)
	}
	return nil
}

func checkTo(to string) error {
	if err := safepath.Check(to); err != nil {
		return fmt.Errorf("%q must stay inside the work tree: %w", to, err)
	}
	if safepath.HasDotGit(to) {
		return fmt.Errorf("%q is git's own", to)
	}
	return nil
}

// overlaps finds folders that two would write to.
func (p *parser) overlaps() {
	for i, a := range p.doc.trees {
		for _, b := range p.doc.trees[:i] {
			inside := strings.HasPrefix(a.To+"/", b.To+"/") || strings.HasPrefix(b.To+"/", a.To+"/")
			if inside && a.To != "" && b.To != "" && (a.Repository == b.Repository || a.Repository == "" || b.Repository == "") {
				p.problems = append(p.problems, Problem{File: p.name, Line: a.Line, Key: treesKey + ".to",
					Message: fmt.Sprintf("%q overlaps with that of line %d", a.To, b.Line), Hint: "give each a folder of its own"})
			}
		}
	}
}
