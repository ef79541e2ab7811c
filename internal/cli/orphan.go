package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// orphanName is the name of an orphan, with the backend if it is at one.
func orphanName(o cove.Orphan) string {
	return environmentName(cove.Environment{Backend: o.Backend, Name: o.Name})
}

// listOrphans shows the orphans. If a place does not answer, it says so, without an error.
func listOrphans(ctx context.Context, inv *invocation) error {
	c, err := inv.server.client(ctx)
	if err != nil {
		return err
	}
	list, err := cove.Environments{Client: c}.Orphans(ctx)
	if err != nil {
		return err
	}
	for i := range list.Unheard {
		p := &list.Unheard[i]
		p.Error.Hint = inv.hints.full(p.Error.Hint)
		inv.say("%s", printable.Line(unheardText(*p)))
	}
	return inv.show(list, func(w io.Writer) {
		rows, now := [][]string{{"NAME", "JOB", "STATUS", "AGE"}}, time.Now()
		for _, o := range list.Orphans {
			rows = append(rows, []string{orphanName(o), o.Job, string(o.Status), span(now.Sub(o.CreatedAt))})
		}
		table(w, rows)
	})
}

func unheardText(p cove.OrphanPlace) string {
	place := "this server"
	if p.Backend != "" {
		place = "backend " + p.Backend
	}
	return fmt.Sprintf("%s did not list its sprites, and may have orphans: %s", place, withHint(p.Error.Message, p.Error.Hint))
}

// destroyOrphans destroys the orphans of these names; of none: all. It is an error if one is left.
func destroyOrphans(ctx context.Context, inv *invocation, names []string) error {
	var ask cove.OrphanDestroy
	for _, name := range names {
		ask.Orphans = append(ask.Orphans, parseOrphan(name))
	}
	c, err := inv.server.client(ctx)
	if err != nil {
		return err
	}
	done, err := cove.Environments{Client: c}.DestroyOrphans(ctx, ask)
	if err != nil {
		return err
	}
	failed := 0
	for i := range done.Results {
		if e := done.Results[i].Error; e != nil {
			failed++
			e.Hint = inv.hints.full(e.Hint)
		}
	}
	for i := range done.Unheard {
		done.Unheard[i].Error.Hint = inv.hints.full(done.Unheard[i].Error.Hint)
		inv.say("%s", printable.Line(unheardText(done.Unheard[i])))
	}
	err = inv.show(done, func(w io.Writer) {
		for _, r := range done.Results {
			said := "destroyed"
			if r.Error != nil {
				said = withHint(r.Error.Message, r.Error.Hint)
			}
			fmt.Fprintf(w, "%s: %s\n", printable.Line(orphanName(r.Orphan)), said)
		}
		if len(done.Results) == 0 && len(done.Unheard) == 0 {
			inv.say("There are no orphans.")
		}
	})
	const hint = "see what is left: cove environment list --orphans"
	switch {
	case err != nil:
	case failed > 0:
		err = hinted(fmt.Errorf("%s of %d not destroyed", printable.Count(failed, "orphan"), len(done.Results)), hint)
	case len(done.Unheard) > 0:
		err = hinted(fmt.Errorf("%s did not answer", printable.Count(len(done.Unheard), "place")), hint)
	}
	return err
}

// parseOrphan reads a name as orphanName writes it.
func parseOrphan(text string) cove.OrphanName {
	if backend, name, ok := strings.Cut(text, "/"); ok {
		return cove.OrphanName{Backend: backend, Name: name}
	}
	return cove.OrphanName{Name: text}
}

// lostOrphans says which orphans go.
func lostOrphans(ctx context.Context, inv *invocation, names []string) (lines []string, _ error) {
	c, err := inv.server.client(ctx)
	if err != nil {
		return nil, err
	}
	list, err := cove.Environments{Client: c}.Orphans(ctx)
	if err != nil {
		return nil, err
	}
	named := map[cove.OrphanName]bool{}
	for _, name := range names {
		named[parseOrphan(name)] = true
	}
	for _, o := range list.Orphans {
		if len(names) == 0 || named[cove.OrphanName{Backend: o.Backend, Name: o.Name}] {
			lines = append(lines, fmt.Sprintf("sprite %s, made for job %s, which no environment has", orphanName(o), o.Job))
		}
	}
	return lines, nil
}
