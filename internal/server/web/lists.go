package web

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"sync"
	"time"

	"github.com/cove-dev/cove"
)

// pace is how often a list is brought up to date at most, however much changes.
const pace = 500 * time.Millisecond

// row is one line of a list.
type row struct {
	ID       string // of its element
	Template string
	Data     any
}

// section is a list in a page. Its template shows it whole.
type section struct {
	ID    string // of its element
	Title string
	Count string
	More  string // where the rest of it is; empty: all is here
	Empty string // in place of rows, if there are none
	Rows  []row
	Tabs  []tab // of the page, whose counts change with the list; nil: it has none
}

// seenRow is a row as the browser has it.
type seenRow struct {
	id  string
	sum uint64
}

// seen is a section as the browser has it.
type seen struct {
	head uint64
	tabs uint64
	rows []seenRow
}

// sum is a digest of what an element shows.
func sum(v any) uint64 {
	h := fnv.New64a()
	if err := json.NewEncoder(h).Encode(v); err != nil {
		panic(err) // rows are structs of texts and numbers
	}
	return h.Sum64()
}

// look is the digest of a section that was sent to the browser.
func (s section) look() seen {
	of := seen{head: sum([]string{s.Title, s.Count, s.More, s.Empty}), tabs: sum(s.Tabs), rows: make([]seenRow, len(s.Rows))}
	for i, r := range s.Rows {
		of.rows[i] = seenRow{r.ID, sum(r.Data)}
	}
	return of
}

// same reports whether two looks have the same head, and rows with the same ids in the same
// order. The texts of the rows and the tabs may differ.
func (s seen) same(other seen) bool {
	if s.head != other.head || len(s.rows) != len(other.rows) {
		return false
	}
	for i := range s.rows {
		if s.rows[i].id != other.rows[i].id {
			return false
		}
	}
	return true
}

// lists are the sections of a page that is kept true. It keeps only digests of what was sent.
type lists struct {
	has map[string]seen // by the section's ID
}

// listsDigest is the digest of everything that the page shows.
func listsDigest(sections []section) string {
	all := make([]string, 0, len(sections))
	for _, s := range sections {
		l := s.look()
		all = append(all, fmt.Sprint(s.ID, l.head, l.tabs, l.rows))
	}
	return strconv.FormatUint(sum(all), 36)
}

// update makes the page show sections. It leaves unchanged rows alone.
func (l *lists) update(s *stream, sections []section) error {
	var changes []change
	for _, sec := range sections {
		now, was := sec.look(), l.has[sec.ID]
		if sec.Tabs != nil && now.tabs != was.tabs {
			text, err := s.html("tabs", sec.Tabs)
			if err != nil {
				return err
			}
			changes = append(changes, change{Target: "kinds", How: "replace", HTML: text})
		}
		if !now.same(was) {
			text, err := s.html("section", sec)
			if err != nil {
				return err
			}
			changes = append(changes, change{Target: sec.ID, How: "replace", HTML: text})
		} else {
			for i, r := range sec.Rows {
				if now.rows[i].sum == was.rows[i].sum {
					continue
				}
				text, err := s.html(r.Template, r.Data)
				if err != nil {
					return err
				}
				changes = append(changes, change{Target: r.ID, How: "replace", HTML: text})
			}
		}
		l.has[sec.ID] = now
	}
	if len(changes) == 0 {
		return nil
	}
	return s.send(listsDigest(sections), changes...)
}

// patch makes rows of the page those of jobs that have told something, if it shows them.
func (l *lists) patch(s *stream, told map[string]*cove.Job, as func(cove.Job) row) error {
	var changes []change
	for id, has := range l.has {
		for i, r := range has.rows {
			job := told[r.id]
			if job == nil {
				continue
			}
			now := as(*job)
			if has.rows[i].sum == sum(now.Data) {
				continue
			}
			text, err := s.html(now.Template, now.Data)
			if err != nil {
				return err
			}
			l.has[id].rows[i].sum = sum(now.Data)
			changes = append(changes, change{Target: r.id, How: "replace", HTML: text})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return s.send("", changes...)
}

// news is what has changed since a page was brought up to date.
type news struct {
	mu    sync.Mutex
	all   bool                 // the lists may have other rows
	told  map[string]*cove.Job // what jobs have told, by the ID of their row
	ready chan struct{}
}

func (n *news) add(m cove.Notification) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.Topic == cove.TopicProgress && m.Job != nil {
		n.told[jobRowID(m.Job.ID)] = m.Job
	} else {
		n.all = true
	}
	select {
	case n.ready <- struct{}{}:
	default:
	}
}

func (n *news) take() (all bool, told map[string]*cove.Job) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, told = n.all, n.told
	n.all, n.told = false, map[string]*cove.Job{}
	return all, told
}

// follow keeps lists of jobs true, at most twice a second, and sends no row that is as it was.
// read reads all lists anew. If again is not 0, follow also reads them whenever that time has
// passed.
func (v *view) follow(again time.Duration, read func(context.Context) ([]section, error), as func(cove.Job) row) error {
	return v.stream(func(ctx context.Context, s *stream) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		n := &news{told: map[string]*cove.Job{}, ready: make(chan struct{}, 1)}
		var watching sync.WaitGroup
		defer watching.Wait()
		defer cancel(nil)
		watching.Go(func() {
			cancel(v.watch(ctx, []string{cove.TopicJobs, cove.TopicProgress}, "", func(m cove.Notification) error {
				n.add(m) // the first says that all later ones are told
				return nil
			}))
		})
		l := &lists{has: map[string]seen{}}
		var late <-chan time.Time
		if again > 0 {
			tick := time.NewTicker(again)
			defer tick.Stop()
			late = tick.C
		}
		had := cmp.Or(v.lastSeen(), v.r.URL.Query().Get("have"))
		for first := true; ; first = false {
			select {
			case <-n.ready:
			case <-late:
				n.add(cove.Notification{})
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := l.refresh(ctx, s, n, first, had, read, as); err != nil {
				return err
			}
			select {
			case <-time.After(pace):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
}

// refresh brings the page up to date. If the page already has everything when it comes (had),
// nothing is sent.
func (l *lists) refresh(ctx context.Context, s *stream, n *news, first bool, had string, read func(context.Context) ([]section, error), as func(cove.Job) row) error {
	all, told := n.take()
	if !all {
		return l.patch(s, told, as)
	}
	sections, err := read(ctx)
	if err != nil {
		return err
	}
	if first && listsDigest(sections) == had {
		for _, sec := range sections {
			l.has[sec.ID] = sec.look()
		}
		return nil
	}
	return l.update(s, sections)
}
