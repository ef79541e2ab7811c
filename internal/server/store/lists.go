package store

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove"
)

// listsMigration groups the jobs by what they need of a person, and keeps what each has told
// last. Failures from before it count as seen: there was no way to say so.
const listsMigration = `ALTER TABLE jobs ADD COLUMN latest TEXT NOT NULL DEFAULT 'null'; -- cove.JobLatest, or null
	UPDATE jobs SET doc = json_set(doc, '$.seen_at', coalesce(doc->>'$.ended_at', doc->>'$.created_at')) WHERE state IN ('failed', 'timed_out', 'lost');
	ALTER TABLE jobs ADD COLUMN kind TEXT GENERATED ALWAYS AS (CASE
		WHEN state IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'lost') THEN CASE
			WHEN doc->>'$.seen_at' IS NOT NULL OR doc->>'$.pulled_at' IS NOT NULL THEN 'done'
			WHEN state IN ('failed', 'timed_out', 'lost') OR doc->>'$.published.state' IN ('held', 'failed') THEN 'needs'
			WHEN doc->>'$.published.state' = 'done' OR doc->>'$.work_deleted' THEN 'done'
			WHEN doc->>'$.commits' > 0 OR doc->>'$.leftover' <> '' THEN 'review'
			ELSE 'done' END
		WHEN state = 'waiting' OR doc->>'$.held' IS NOT NULL THEN 'needs'
		ELSE 'working' END) VIRTUAL; -- cove.JobGroup
	CREATE INDEX jobs_by_kind ON jobs (kind, created_at);
	CREATE INDEX sprites_held ON sprites (name) WHERE held <> 'null';
	CREATE TRIGGER job_progressed AFTER UPDATE OF latest ON jobs WHEN NEW.latest <> OLD.latest BEGIN
		DELETE FROM changes WHERE topic = 'progress' AND name = NEW.id;
		INSERT INTO changes (topic, name) VALUES ('progress', NEW.id);
	END;
	DROP TRIGGER job_deleted;
	CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN
		DELETE FROM changes WHERE topic IN ('jobs', 'steps', 'progress') AND name = OLD.id;
		INSERT INTO changes (topic, name, place, gone) VALUES ('jobs', OLD.id, OLD.sprite, 1);
		DELETE FROM changes WHERE gone AND seq <= (SELECT seq FROM changes WHERE gone ORDER BY seq DESC LIMIT 1 OFFSET 10000);
	END;`

// Reach says which sprites and jobs a token reaches, in the terms of SQL.
type Reach struct {
	By     string // the token, which sees the jobs that it has begun; empty: none
	Sprite string // it reaches this one; empty: see the others
	Prefix string // of the names that it reaches
	JobsBy bool   // it reaches those that were made for its jobs
}

// jobs is a condition on rows of jobs.
func (r *Reach) jobs() (string, []any) {
	if r == nil {
		return "", nil
	}
	where, args := " AND (0", []any(nil)
	if r.By != "" {
		where += " OR jobs.doc->>'$.by' = ?"
		args = append(args, r.By)
	}
	switch {
	case r.Sprite != "":
		where += " OR jobs.sprite = ?"
		args = append(args, r.Sprite)
	case r.Prefix != "":
		where += " OR instr(jobs.sprite, '/') = 0 AND substr(jobs.sprite, 1, length(?)) = ?"
		args = append(args, r.Prefix, r.Prefix)
	case r.JobsBy && r.By != "":
		where += " OR EXISTS (SELECT 1 FROM sprites s JOIN jobs o ON s.owner = 'job:' || o.id WHERE s.name = jobs.sprite AND o.sprite = s.name AND o.doc->>'$.by' = ?)"
		args = append(args, r.By)
	}
	return where + ")", args
}

// pattern is a text as LIKE finds it anywhere, with ESCAPE '\'.
func pattern(text string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(text) + "%"
}

// jobTexts are what a job is found by.
const jobTexts = `(jobs.id LIKE ?1 ESCAPE '\' OR jobs.sprite LIKE ?1 ESCAPE '\' OR jobs.doc->>'$.plan_name' LIKE ?1 ESCAPE '\'
	OR jobs.doc->>'$.title' LIKE ?1 ESCAPE '\' OR EXISTS (SELECT 1 FROM json_each(jobs.doc, '$.headings') h WHERE h.value LIKE ?1 ESCAPE '\')
	OR jobs.doc->>'$.repository' LIKE ?1 ESCAPE '\' OR jobs.doc->>'$.branch' LIKE ?1 ESCAPE '\' OR jobs.doc->>'$.agent' LIKE ?1 ESCAPE '\'
	OR jobs.doc->>'$.profile' LIKE ?1 ESCAPE '\' OR jobs.doc->>'$.url' LIKE ?1 ESCAPE '\')`

// found is a condition, with texts in the place of each ?1.
func found(texts, text string) (string, []any) {
	args := make([]any, strings.Count(texts, "?1"))
	for i := range args {
		args[i] = pattern(text)
	}
	return " AND " + strings.ReplaceAll(texts, "?1", "?"), args
}

// ByOwner is a JobFilter.By besides the IDs of tokens.
const ByOwner = "owner" // those of the server's owner

// where is a filter's condition, but for the group and the place in the list.
func (f JobFilter) where() (string, []any) {
	where, args := " WHERE 1", []any(nil)
	add := func(cond string, values ...any) {
		where += cond
		args = append(args, values...)
	}
	if f.Sprite != "" {
		add(" AND sprite = ?", place(f.Backend, f.Sprite))
	}
	if n := len(f.States); n > 0 {
		add(" AND state IN (" + strings.TrimSuffix(strings.Repeat("?,", n), ",") + ")")
		for _, s := range f.States {
			args = append(args, s)
		}
	}
	if f.Publishing {
		add(" AND doc->>'$.published.state' = 'pending'")
	}
	if f.Handed {
		add(" AND doc->>'$.handed' = 1")
	}
	if f.Removing {
		add(" AND doc->>'$.removing'")
	}
	if f.Profile != "" {
		add(" AND doc->>'$.profile' = ?", f.Profile)
	}
	if f.Repository != "" {
		add(" AND doc->>'$.repository' = ?", f.Repository)
	}
	switch f.By {
	case "":
	case ByOwner:
		add(" AND coalesce(doc->>'$.by', '') = ''")
	default:
		add(" AND doc->>'$.by' = ?", f.By)
	}
	if f.Of != "" {
		add(" AND "+jobBefore+" = ?", f.Of)
	}
	if f.Label != "" {
		add(" AND EXISTS (SELECT 1 FROM sprites s, json_each(s.labels) l WHERE s.name = jobs.sprite AND l.value = ?)", f.Label)
	}
	if f.Text != "" {
		cond, values := found(jobTexts, f.Text)
		add(cond, values...)
	}
	cond, values := f.Reach.jobs()
	add(cond, values...)
	return where, args
}

// JobCursor is a place in a list of jobs: after this one.
func JobCursor(job cove.Job) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(job.CreatedAt.UnixMicro(), 10) + " " + job.ID))
}

// readCursor reads a JobCursor.
func readCursor(text string) (at int64, id string, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) > 100 {
		return 0, "", false
	}
	stamp, id, ok := strings.Cut(string(b), " ")
	at, err = strconv.ParseInt(stamp, 10, 64)
	return at, id, ok && err == nil
}

// GoodCursor reports whether a text may be a JobCursor.
func GoodCursor(text string) bool {
	_, _, ok := readCursor(text)
	return ok
}

// Groups counts the jobs that filter selects, by what they need. The filter's own group, limit and
// place in the list do not matter.
func (j *Jobs) Groups(ctx context.Context, filter JobFilter) (map[cove.JobGroup]int, error) {
	where, args := filter.where()
	count := map[cove.JobGroup]int{}
	_, err := collect(ctx, j.db.read, func(row scanner) (struct{}, error) {
		var group cove.JobGroup
		var n int
		err := row.Scan(&group, &n)
		count[group] = n
		return struct{}{}, err
	}, "SELECT kind, count(*) FROM jobs"+where+" GROUP BY kind", args...)
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	return count, nil
}

// MarkSeen notes that a person has seen how a job ended, or has not. One that has not ended is ErrInUse.
func (j *Jobs) MarkSeen(ctx context.Context, id string, seen bool) error {
	return j.Update(ctx, id, func(job *cove.Job) error {
		switch t := now(); {
		case !job.State.Terminal():
			return ErrInUse
		case !seen:
			job.SeenAt = nil
		case job.SeenAt == nil:
			job.SeenAt = &t
		}
		return nil
	})
}

// followUp notes that the job which a new one does again, or goes on with, needs nobody any more.
func followUp(ctx context.Context, tx *sql.Tx, job cove.Job) error {
	for _, id := range []string{job.RetryOf, job.ResumeOf} {
		if id == "" {
			continue
		}
		_, err := tx.ExecContext(ctx, "UPDATE jobs SET doc = json_set(doc, '$.seen_at', ?) WHERE id = ? AND doc->>'$.seen_at' IS NULL", now().Format(time.RFC3339Nano), id)
		if err != nil {
			return err
		}
	}
	return nil
}

// Append is AppendEvents, and keeps what the job has told last; nil: that stays.
func (j *Jobs) Append(ctx context.Context, id string, events []cove.JobEvent, latest *cove.JobLatest) error {
	if len(events) == 0 {
		return nil
	}
	err := j.db.update(ctx, func(tx *sql.Tx) error {
		if err := appendEvents(ctx, tx, id, events); err != nil || latest == nil {
			return err
		}
		doc, err := json.Marshal(latest)
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE jobs SET latest = ? WHERE id = ? AND latest <> ?", string(doc), id, string(doc))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("append events to job %s: %w", id, err)
	}
	j.notify(id)
	return nil
}
