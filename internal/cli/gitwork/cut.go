package gitwork

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// maxCuts bounds the commits at which a history is cut off: they travel in a
// request.
const maxCuts = 10_000

// Cut lists, sorted, the commits that are sent without their parents when the history
// of base and of the submodules is sent. These are the commits at which this clone, or
// a submodule's, is shallow; and, if depth is more than 0, those depth commits away.
func (r *Repo) Cut(ctx context.Context, base string, depth int, modules []Module) ([]string, error) {
	shallow, err := r.grafts(modules)
	if err != nil || depth == 0 && len(shallow) == 0 {
		return nil, err
	}
	s, err := r.scratch(ctx, modules...)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	tips := []string{base}
	for _, m := range modules {
		tips = append(tips, m.Commit)
	}
	var cuts []string
	if depth > 0 {
		cuts, err = s.cutsAt(ctx, tips, depth, shallow)
	} else {
		cuts, err = s.cutsIn(ctx, tips, shallow)
	}
	if err != nil {
		return nil, fmt.Errorf("find where the history is cut off: %w", err)
	}
	if len(cuts) > maxCuts {
		return nil, &fail.Error{Code: ErrShallow.Code, Message: fmt.Sprintf("the history here is cut off at %d commits, and at most %d can be sent", len(cuts), maxCuts),
			Hint: "git fetch --unshallow; or send less: --depth 1"}
	}
	slices.Sort(cuts)
	return cuts, nil
}

// grafts are the commits without parents of a shallow clone and its submodules.
func (r *Repo) grafts(modules []Module) (map[string]bool, error) {
	set := map[string]bool{}
	repos := []*Repo{r}
	for _, m := range modules {
		repos = append(repos, m.Repo)
	}
	for _, repo := range repos {
		if !repo.Shallow {
			continue
		}
		list, err := os.ReadFile(filepath.Join(repo.CommonDir, "shallow"))
		if err != nil {
			return nil, fmt.Errorf("read where the clone is shallow: %w", err)
		}
		for line := range strings.FieldsSeq(string(list)) {
			set[line] = true
		}
	}
	return set, nil
}

// cutsIn keeps those of the shallow commits that the tips lead to.
func (s *scratch) cutsIn(ctx context.Context, tips []string, shallow map[string]bool) ([]string, error) {
	var cuts []string
	w := &recordWriter{end: '\n', each: func(id string) {
		if shallow[id] {
			cuts = append(cuts, id)
		}
	}}
	_, err := s.git.run(ctx, call{args: []string{"rev-list", "--stdin"}, stdin: revisions(tips, nil), stdout: w, timeout: patiently})
	return cuts, err
}

// cutsAt walks from the tips, depth commits far, and returns those at the end that
// have parents, besides the shallow ones on the way.
func (s *scratch) cutsAt(ctx context.Context, tips []string, depth int, shallow map[string]bool) ([]string, error) {
	objects := s.objects(ctx)
	defer objects.close()
	seen := map[string]bool{}
	var cuts []string
	for level := tips; len(level) > 0 && depth > 0; depth-- {
		var next []string
		for _, id := range level {
			if seen[id] {
				continue
			}
			seen[id] = true
			if shallow[id] {
				cuts = append(cuts, id)
				continue
			}
			body, _, err := objects.read(id, "commit", maxTreeSize)
			if err != nil {
				return nil, err
			}
			parents := parentsOf(body)
			if depth == 1 && len(parents) > 0 {
				cuts = append(cuts, id)
			}
			next = append(next, parents...)
		}
		level = next
	}
	return cuts, nil
}

// parentsOf reads the parents in a commit object.
func parentsOf(body []byte) (parents []string) {
	sc := bufio.NewScanner(strings.NewReader(string(body)))
	for sc.Scan() {
		if id, ok := strings.CutPrefix(sc.Text(), "parent "); ok {
			parents = append(parents, id)
		} else if !strings.HasPrefix(sc.Text(), "tree ") {
			break
		}
	}
	return parents
}

// cutAt makes the history in the scratch repository end at the given commits.
func (s *scratch) cutAt(commits []string) error {
	path := filepath.Join(s.dir, "shallow")
	if len(commits) == 0 {
		if err := os.Remove(path); err != nil && !isNotExist(err) {
			return fmt.Errorf("cut the history off: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(path, []byte(strings.Join(commits, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("cut the history off: %w", err)
	}
	return nil
}

// recordWriter calls each for every record that is written to it, without its end.
type recordWriter struct {
	end  byte
	each func(record string)
	rest []byte
}

func (w *recordWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, w.end)
		if i < 0 {
			return len(p), nil
		}
		w.each(string(w.rest[:i]))
		w.rest = w.rest[i+1:]
	}
}
