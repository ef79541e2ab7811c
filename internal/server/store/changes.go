package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
)

// Changes tells which jobs, steps, profiles and environments have changed, and in what order.
// Triggers of the schema write a row in the transaction of each change, so neither is there
// without the other. Each thing has one row, and its next change gives the row a new number.
// So the whole past is a list of the things that there are. A reader that was away gets each
// thing once, as it is now.
type Changes struct {
	db   *database
	feed string
}

// Change says that something is another since the changes with smaller numbers.
type Change struct {
	Seq   int64
	Topic string // cove.TopicJobs, …
	Name  string // the job's or environment's ID, or the profile's name
	Gone  bool   // it was deleted

	Backend, Sprite string // of a job or environment that is gone
}

// maxGone is how many changes are kept that say that something is gone. The triggers have the number, too.
const maxGone = 10_000

// maxFeeds is how many starts of a server are known.
const maxFeeds = 1000

// changesMigration gives everything that is there a number, in the order of age.
const changesMigration = `CREATE TABLE changes (
		seq   INTEGER PRIMARY KEY AUTOINCREMENT,
		topic TEXT NOT NULL, -- jobs, steps, profiles, environments
		name  TEXT NOT NULL,
		place TEXT NOT NULL DEFAULT '', -- of a job or environment that is gone: backend/sprite, or sprite
		gone  INTEGER NOT NULL DEFAULT 0
	) STRICT;
	CREATE UNIQUE INDEX changes_by_name ON changes (topic, name);
	CREATE INDEX changes_gone ON changes (seq) WHERE gone;
	CREATE TABLE feeds (
		id    TEXT PRIMARY KEY, -- of a start of the server
		after INTEGER NOT NULL  -- the last number before it
	) STRICT, WITHOUT ROWID;
	INSERT INTO changes (topic, name) SELECT 'profiles', name FROM profiles ORDER BY created_at;
	INSERT INTO changes (topic, name) SELECT 'jobs', id FROM jobs ORDER BY created_at;
	INSERT INTO changes (topic, name) SELECT 'steps', id FROM jobs WHERE id IN (SELECT job FROM job_steps) ORDER BY created_at;
	INSERT INTO changes (topic, name) SELECT 'environments', id FROM environments ORDER BY created_at;
	CREATE TRIGGER job_made AFTER INSERT ON jobs BEGIN
		DELETE FROM changes WHERE topic = 'jobs' AND name = NEW.id;
		INSERT INTO changes (topic, name) VALUES ('jobs', NEW.id);
	END;
	CREATE TRIGGER job_changed AFTER UPDATE OF doc ON jobs WHEN NEW.doc <> OLD.doc BEGIN
		DELETE FROM changes WHERE topic = 'jobs' AND name = NEW.id;
		INSERT INTO changes (topic, name) VALUES ('jobs', NEW.id);
	END;
	CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN
		DELETE FROM changes WHERE topic IN ('jobs', 'steps') AND name = OLD.id;
		INSERT INTO changes (topic, name, place, gone) VALUES ('jobs', OLD.id, OLD.sprite, 1);
		DELETE FROM changes WHERE gone AND seq <= (SELECT seq FROM changes WHERE gone ORDER BY seq DESC LIMIT 1 OFFSET 10000);
	END;
	CREATE TRIGGER step_made AFTER INSERT ON job_steps BEGIN
		DELETE FROM changes WHERE topic = 'steps' AND name = NEW.job;
		INSERT INTO changes (topic, name) VALUES ('steps', NEW.job);
	END;
	CREATE TRIGGER step_changed AFTER UPDATE OF doc ON job_steps WHEN NEW.doc <> OLD.doc BEGIN
		DELETE FROM changes WHERE topic = 'steps' AND name = NEW.job;
		INSERT INTO changes (topic, name) VALUES ('steps', NEW.job);
	END;
	CREATE TRIGGER profile_made AFTER INSERT ON profiles BEGIN
		DELETE FROM changes WHERE topic = 'profiles' AND name = NEW.name;
		INSERT INTO changes (topic, name) VALUES ('profiles', NEW.name);
	END;
	CREATE TRIGGER profile_changed AFTER UPDATE OF revision ON profiles BEGIN
		DELETE FROM changes WHERE topic = 'profiles' AND name = NEW.name;
		INSERT INTO changes (topic, name) VALUES ('profiles', NEW.name);
	END;
	CREATE TRIGGER profile_deleted AFTER DELETE ON profiles BEGIN
		DELETE FROM changes WHERE topic = 'profiles' AND name = OLD.name;
		INSERT INTO changes (topic, name, gone) VALUES ('profiles', OLD.name, 1);
		DELETE FROM changes WHERE gone AND seq <= (SELECT seq FROM changes WHERE gone ORDER BY seq DESC LIMIT 1 OFFSET 10000);
	END;
	CREATE TRIGGER environment_made AFTER INSERT ON environments BEGIN
		DELETE FROM changes WHERE topic = 'environments' AND name = NEW.id;
		INSERT INTO changes (topic, name) VALUES ('environments', NEW.id);
	END;
	CREATE TRIGGER environment_changed AFTER UPDATE OF version ON environments WHEN NEW.version <> OLD.version BEGIN
		DELETE FROM changes WHERE topic = 'environments' AND name = NEW.id;
		INSERT INTO changes (topic, name) VALUES ('environments', NEW.id);
		DELETE FROM changes WHERE topic = 'jobs' AND name = NEW.job AND NOT gone; -- a job shows its environment
		INSERT INTO changes (topic, name) SELECT 'jobs', id FROM jobs WHERE id = NEW.job;
	END;
	CREATE TRIGGER environment_deleted AFTER DELETE ON environments BEGIN
		DELETE FROM changes WHERE topic = 'environments' AND name = OLD.id;
		INSERT INTO changes (topic, name, place, gone) VALUES ('environments', OLD.id, OLD.place, 1);
		DELETE FROM changes WHERE gone AND seq <= (SELECT seq FROM changes WHERE gone ORDER BY seq DESC LIMIT 1 OFFSET 10000);
	END;`

// begin gives this start of the server a name. With that name, a number is known to come from
// this store, and not from a copy that went on by itself.
func (c *Changes) begin(ctx context.Context) error {
	c.feed = rand.Text()
	tx, err := c.db.write.BeginTx(ctx, nil) // no change in the sense of the epoch: a store that lacks it is none the older
	if err != nil {
		return diskError(err)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO feeds (id, after) SELECT ?, coalesce(max(seq), 0) FROM changes", c.feed)
	if err == nil {
		_, err = tx.ExecContext(ctx, "DELETE FROM feeds WHERE id IN (SELECT id FROM feeds WHERE id <> ? ORDER BY after DESC LIMIT -1 OFFSET ?)", c.feed, maxFeeds)
	}
	if err != nil {
		return errors.Join(diskError(err), tx.Rollback())
	}
	return diskError(tx.Commit())
}

// Watch returns a channel that gets a value after each change, and perhaps at other times.
// Values that nobody has received yet become one. cancel ends it.
func (c *Changes) Watch() (changed <-chan struct{}, cancel func()) { return c.db.committed.Watch() }

// Feed is the name of this start of the server.
func (c *Changes) Feed() string { return c.feed }

// Last is the number of the newest change; 0: there is none.
func (c *Changes) Last(ctx context.Context) (n int64, err error) {
	err = c.db.read.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM changes").Scan(&n)
	return n, diskError(err)
}

// Knows reports whether all changes after a number can be told to one that has it from a feed.
// They can't if the number is from another store, or from a newer state than the one that this
// store was brought back to. Nor can they if the number is so old that deletions since then are
// forgotten.
func (c *Changes) Knows(ctx context.Context, feed string, seq int64) (yes bool, err error) {
	var after, upTo, gone, oldest int64
	err = c.db.read.QueryRowContext(ctx, `SELECT f.after,
			coalesce((SELECT min(after) FROM feeds WHERE after > f.after), (SELECT max(seq) FROM changes), 0),
			(SELECT count(*) FROM changes WHERE gone), coalesce((SELECT min(seq) FROM changes WHERE gone), 0)
		FROM feeds f WHERE f.id = ?`, feed).Scan(&after, &upTo, &gone, &oldest)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for change %d: %w", seq, diskError(err))
	}
	return seq >= 0 && seq <= upTo && (gone < maxGone || seq >= oldest), nil
}

// After returns up to limit changes with greater numbers than seq, in order. A job restricts
// them to its own; "" does not.
func (c *Changes) After(ctx context.Context, topics []string, job string, seq int64, limit int) ([]Change, error) {
	query := "SELECT seq, topic, name, place, gone FROM changes WHERE seq > ? AND topic IN (" + strings.TrimSuffix(strings.Repeat("?,", len(topics)), ",") + ")"
	args := []any{seq}
	for _, topic := range topics {
		args = append(args, topic)
	}
	if job != "" {
		query += " AND (name = ? OR topic NOT IN (?, ?, ?))"
		args = append(args, job, cove.TopicJobs, cove.TopicSteps, cove.TopicProgress)
	}
	list, err := collect(ctx, c.db.read, func(row scanner) (ch Change, err error) {
		var place string
		err = row.Scan(&ch.Seq, &ch.Topic, &ch.Name, &place, &ch.Gone)
		ch.Backend, ch.Sprite = placed(place)
		return ch, err
	}, query+" ORDER BY seq LIMIT ?", slices.Concat(args, []any{limit})...)
	if err != nil {
		return nil, fmt.Errorf("changes after %d: %w", seq, err)
	}
	return list, nil
}
