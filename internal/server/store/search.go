package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-dev/cove"
)

// Bounds of a search.
const (
	MaxFound     = 20              // of each kind
	searchEvents = 100_000         // that are looked through, of the newest jobs
	searchTime   = 3 * time.Second // that looking through logs takes
	linesOfJob   = 5               // that are shown of one job
	aroundFound  = 120             // bytes of a line before and after the text
)

// Commits returns the commits that jobs began with or made, and that begin with some hexadecimal
// digits, those of the newest jobs first.
func (j *Jobs) Commits(ctx context.Context, prefix string, reach *Reach) ([]cove.FoundCommit, error) {
	where, args := reach.jobs()
	list, err := collect(ctx, j.db.read, func(row scanner) (c cove.FoundCommit, err error) {
		err = row.Scan(&c.Job, &c.Commit, &c.Role)
		return c, err
	}, `SELECT jobs.id, c.value, CASE c.key WHEN 0 THEN 'base' WHEN 1 THEN 'head' ELSE 'leftover' END
		FROM jobs, json_each(json_array(doc->>'$.base', doc->>'$.head', doc->>'$.leftover')) c
		WHERE substr(c.value, 1, length(?)) = ?`+where+` ORDER BY jobs.created_at DESC, jobs.id, c.key LIMIT ?`,
		append(append([]any{prefix, prefix}, args...), MaxFound)...)
	if err != nil {
		return nil, fmt.Errorf("look for a commit: %w", err)
	}
	return list, nil
}

// Lines returns events of jobs' logs that contain a text, without regard to the case of ASCII
// letters. The newest jobs come first, and of each job the last events. The flag older says
// that some logs were not looked through.
func (j *Jobs) Lines(ctx context.Context, text string, reach *Reach) (lines []cove.FoundLine, older bool, err error) {
	limited, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	lines, older, err = j.lines(limited, text, reach)
	if errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		return lines, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look through the logs: %w", err)
	}
	return lines, older, nil
}

// jobLog is the log of a job, by its number of events.
type jobLog struct {
	job     string
	created int64
	events  int64
}

func (j *Jobs) lines(ctx context.Context, text string, reach *Reach) (lines []cove.FoundLine, older bool, err error) {
	where, args := reach.jobs()
	logs, err := collect(ctx, j.db.read, func(row scanner) (l jobLog, err error) {
		err = row.Scan(&l.job, &l.created, &l.events)
		return l, err
	}, "SELECT id, created_at, last_seq FROM jobs WHERE last_seq > 0"+where+" ORDER BY created_at DESC, id LIMIT ?", append(args, searchEvents)...)
	left := int64(searchEvents)
	for _, l := range logs {
		if len(lines) >= MaxFound {
			return lines[:MaxFound], older, err
		}
		if left <= 0 {
			return lines, true, err
		}
		from := max(1, l.events-left+1)
		older = older || from > 1
		left -= l.events
		found, err := j.linesOf(ctx, l, from, text)
		lines = append(lines, found...)
		if err != nil {
			return lines, true, err
		}
	}
	return lines, older, err
}

// linesOf are the last ones of a log that have a text, from an event on.
func (j *Jobs) linesOf(ctx context.Context, l jobLog, from int64, text string) (lines []cove.FoundLine, err error) {
	for last := l.events; last >= from && len(lines) < linesOfJob; {
		first := max(from, (last-1)/partEvents*partEvents+1)
		may, err := j.mayHave(ctx, logPart{l.job, l.created, first, last}, text)
		if err != nil {
			return lines, err
		}
		if may {
			found, err := collect(ctx, j.db.read, func(row scanner) (line cove.FoundLine, err error) {
				line.Job = l.job
				err = row.Scan(&line.Seq, &line.Text)
				line.Text = Around(line.Text, text)
				return line, err
			}, `SELECT seq, doc->>'$.text' FROM job_events WHERE job = ? AND seq BETWEEN ? AND ? AND doc->>'$.text' LIKE ? ESCAPE '\' ORDER BY seq DESC LIMIT ?`,
				l.job, first, last, pattern(text), linesOfJob-len(lines))
			if err != nil {
				return lines, err
			}
			lines = append(lines, found...)
		}
		last = first - 1
	}
	return lines, nil
}

// Around is the part of a line that has a text.
func Around(line, text string) string {
	at := max(0, strings.Index(strings.ToLower(line), strings.ToLower(text)))
	from, to := max(0, at-aroundFound), min(len(line), at+len(text)+aroundFound)
	from, to = min(from, len(line)), max(to, min(from, len(line)))
	for from > 0 && !utf8.RuneStart(line[from]) {
		from--
	}
	for to < len(line) && !utf8.RuneStart(line[to]) {
		to++
	}
	part := line[from:to]
	if from > 0 {
		part = "…" + part
	}
	if to < len(line) {
		part += "…"
	}
	return part
}
