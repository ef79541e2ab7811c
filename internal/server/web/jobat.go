package web

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cove-dev/cove"
)

// askedEvent is the number of the event that the address of a job's page names.
func askedEvent(v *view) (seq int64, ok bool) {
	seq, err := strconv.ParseInt(v.r.URL.Query().Get("at"), 10, 64)
	return seq, err == nil
}

// fill puts the newest events on a job's page, or those around the one that its address names.
func (p *jobPage) fill(v *view) (err error) {
	at, asked := askedEvent(v)
	if p.Entries, p.Before, err = v.newest(p.Job, p.LastSeq-window+1, p.LastSeq+1, at); err != nil || !asked {
		return err
	}
	if at > 0 && at < p.Before {
		if err := p.around(v, at); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(p.Entries, func(e *entry) bool { return e.Seq == at || e.Answer != nil && e.Answer.Seq == at }) {
		p.Lacks = fmt.Sprintf("Event %d can’t be shown: it has no text, was removed, or never was.", at)
	}
	return nil
}

// around has the page show an event and those before and after it, as many as it takes at once.
func (p *jobPage) around(v *view, at int64) (err error) {
	for half := int64(window / 2); ; half /= 2 {
		from, to := max(1, at-half), min(at+half, p.LastSeq)+1
		if p.Entries, err = v.entries(p.Job, from, to, at); err != nil {
			return err
		}
		start, err := fits(p.Entries)
		if err != nil {
			return err
		}
		if start > 0 && half > 0 {
			continue
		}
		p.Before = 0
		if from > 1 {
			p.Before = from
		}
		p.goOn(to)
		return nil
	}
}

// goOn notes that the page has no event from a number on. If the job is at work, it stays so:
// new events are not put behind a gap.
func (p *jobPage) goOn(to int64) {
	if to <= p.LastSeq {
		p.Next = to
	}
	p.Apart = p.Next > 0 || !p.Ended()
}

// jobLater shows more after the events around the one that an address has named.
func jobLater(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	from, _ := strconv.ParseInt(v.r.URL.Query().Get("from"), 10, 64)
	from = min(max(from, 1), j.LastSeq+1)
	page := jobPage{jobView: j}
	for n := int64(earlier); ; n /= 2 {
		to := min(from+n, j.LastSeq+1)
		if page.Entries, err = v.entries(j.Job, from, to, 0); err != nil {
			return err
		}
		start, err := fits(page.Entries)
		if err != nil {
			return err
		}
		if start == 0 || n == 1 {
			page.goOn(to)
			return v.fragment("entries", page)
		}
	}
}

// alone adds the event that a page is asked for, as an entry of its own. If the event shows
// nothing else, the entry has its text.
func (t *transcript) alone(ev cove.JobEvent) {
	t.last = nil
	if len(t.add(ev)) == 0 && ev.Text != "" {
		t.put(&entry{ID: fmt.Sprintf("e-%d", ev.Seq), Seq: ev.Seq, At: ev.Time, Kind: "notice", Input: []part{code(ev.Text)}})
	}
	t.last = nil
}
