package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/fault"
)

// migrations bring a database from version i to i+1; the version is SQLite's own
// user_version. A migration that was released never changes: add one.
var migrations = []string{
	`CREATE TABLE sprites (
		id           TEXT PRIMARY KEY,
		name         TEXT NOT NULL UNIQUE,
		machine_id   TEXT NOT NULL,
		base         TEXT NOT NULL,
		include      TEXT NOT NULL,    -- JSON array
		env          TEXT NOT NULL,    -- JSON object
		config       TEXT NOT NULL,    -- JSON object
		labels       TEXT NOT NULL,    -- JSON array
		url_settings TEXT NOT NULL,    -- JSON object
		idle_seconds INTEGER NOT NULL, -- 0: never sleeps
		owner        TEXT NOT NULL,
		lease_until  INTEGER,
		status       TEXT NOT NULL,
		incarnation  INTEGER NOT NULL,
		last_error   TEXT NOT NULL,
		deleting     INTEGER NOT NULL DEFAULT 0, -- its disk is being removed
		created_at   INTEGER NOT NULL,
		updated_at   INTEGER NOT NULL,
		last_running INTEGER
	) STRICT;
	CREATE TABLE tokens (
		id         TEXT PRIMARY KEY,
		name       TEXT NOT NULL,
		hash       BLOB NOT NULL UNIQUE, -- SHA-256 of the secret
		scope      TEXT NOT NULL,        -- JSON object
		verbs      TEXT NOT NULL,        -- JSON array
		created_at INTEGER NOT NULL,
		expires_at INTEGER,
		last_used  INTEGER
	) STRICT;
	CREATE TABLE jobs (
		id         TEXT PRIMARY KEY,
		state      TEXT NOT NULL,
		sprite     TEXT NOT NULL,
		created_at INTEGER NOT NULL,
		last_seq   INTEGER NOT NULL DEFAULT 0,
		doc        TEXT NOT NULL,        -- sprites.Job
		settings   TEXT NOT NULL         -- the request's snapshot
	) STRICT;
	CREATE INDEX jobs_by_sprite ON jobs (sprite);
	CREATE INDEX jobs_by_age ON jobs (created_at);
	CREATE TABLE job_events (
		job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
		seq INTEGER NOT NULL,
		doc TEXT NOT NULL,               -- sprites.JobEvent
		PRIMARY KEY (job, seq)
	) STRICT, WITHOUT ROWID;
	CREATE TABLE settings (
		key   TEXT PRIMARY KEY,
		value TEXT NOT NULL
	) STRICT, WITHOUT ROWID;`,
	`ALTER TABLE sprites ADD COLUMN policy TEXT NOT NULL DEFAULT '{}'; -- JSON object`,
	`CREATE TABLE secrets (
		name       TEXT PRIMARY KEY,
		sealed     BLOB NOT NULL, -- nonce, and the value by AES-256-GCM, bound to the name
		created_at INTEGER NOT NULL,
		updated_at INTEGER NOT NULL
	) STRICT;`,
	`CREATE TABLE connectors (
		name       TEXT PRIMARY KEY,
		doc        TEXT NOT NULL, -- sprites.Connector
		created_at INTEGER NOT NULL,
		updated_at INTEGER NOT NULL
	) STRICT;
	CREATE TABLE connector_grants (
		connector TEXT NOT NULL REFERENCES connectors (name) ON DELETE CASCADE,
		sprite    TEXT NOT NULL,  -- a name; '': by the label
		label     TEXT NOT NULL,
		job       TEXT REFERENCES jobs (id) ON DELETE CASCADE
	) STRICT;
	CREATE UNIQUE INDEX connector_grants_once ON connector_grants (connector, sprite, label, ifnull(job, ''));`,
	`CREATE TABLE layers (
		id     TEXT PRIMARY KEY,             -- 16 hexadecimal digits
		parent TEXT REFERENCES layers (id),  -- NULL: it lies on the base
		level  INTEGER NOT NULL DEFAULT 0,   -- how often what it has was merged
		doomed INTEGER NOT NULL DEFAULT 0    -- nobody has it, and its folder is being removed
	) STRICT;
	CREATE INDEX layers_by_parent ON layers (parent);
	ALTER TABLE sprites ADD COLUMN layer TEXT REFERENCES layers (id); -- the one that is written
	ALTER TABLE sprites ADD COLUMN next TEXT NOT NULL DEFAULT '{}';   -- JSON object: see Sprites.Begin
	ALTER TABLE sprites ADD COLUMN numbered INTEGER NOT NULL DEFAULT 0; -- checkpoints ever
	CREATE INDEX sprites_by_layer ON sprites (layer);
	INSERT INTO layers (id) SELECT id FROM sprites;
	UPDATE sprites SET layer = id;
	CREATE TABLE checkpoints (
		sprite     TEXT NOT NULL REFERENCES sprites (id) ON DELETE CASCADE,
		name       TEXT NOT NULL,
		layer      TEXT NOT NULL REFERENCES layers (id), -- the last one that it has
		created_at INTEGER NOT NULL,
		doc        TEXT NOT NULL,
		PRIMARY KEY (sprite, name)
	) STRICT;
	CREATE INDEX checkpoints_by_layer ON checkpoints (layer);`,
	`CREATE TABLE backends (
		name       TEXT PRIMARY KEY,
		url        TEXT NOT NULL,
		sealed     BLOB NOT NULL, -- the token, with the key of the secrets
		created_at INTEGER NOT NULL,
		updated_at INTEGER NOT NULL
	) STRICT;`,
	`ALTER TABLE layers ADD COLUMN facts TEXT NOT NULL DEFAULT '{}'; -- JSON object, of a sealed one`,
	`CREATE TABLE installs (
		key         TEXT PRIMARY KEY,
		layer       TEXT NOT NULL REFERENCES layers (id),
		agent       TEXT NOT NULL,
		version     TEXT NOT NULL,
		took_micros INTEGER NOT NULL,
		created_at  INTEGER NOT NULL,
		used_at     INTEGER NOT NULL
	) STRICT;
	CREATE INDEX installs_by_layer ON installs (layer);`,
	// Before this column, the layers below a state told its source, until they were
	// merged.
	`ALTER TABLE checkpoints ADD COLUMN source TEXT NOT NULL DEFAULT ''; -- the name of what it grew from
	ALTER TABLE sprites ADD COLUMN source TEXT NOT NULL DEFAULT '';      -- and that of what it is now
	CREATE INDEX checkpoints_by_source ON checkpoints (sprite, source);
	WITH RECURSIVE below (sprite, layer, at, depth) AS (
		SELECT sprite, layer, layer, 0 FROM checkpoints
		UNION ALL SELECT b.sprite, b.layer, l.parent, b.depth + 1 FROM below b JOIN layers l ON l.id = b.at WHERE l.parent IS NOT NULL
	), nearest AS (
		SELECT b.sprite, b.layer, c.name, min(b.depth) FROM below b JOIN checkpoints c ON c.layer = b.at AND c.sprite = b.sprite
		WHERE b.depth > 0 GROUP BY b.sprite, b.layer
	) UPDATE checkpoints SET source = n.name FROM nearest n WHERE n.sprite = checkpoints.sprite AND n.layer = checkpoints.layer;
	WITH RECURSIVE below (sprite, at, depth) AS (
		SELECT id, layer, 0 FROM sprites
		UNION ALL SELECT b.sprite, l.parent, b.depth + 1 FROM below b JOIN layers l ON l.id = b.at WHERE l.parent IS NOT NULL
	), nearest AS (
		SELECT b.sprite, c.name, min(b.depth) FROM below b JOIN checkpoints c ON c.layer = b.at AND c.sprite = b.sprite GROUP BY b.sprite
	) UPDATE sprites SET source = n.name FROM nearest n WHERE n.sprite = sprites.id;`,
	`ALTER TABLE sprites ADD COLUMN retention TEXT NOT NULL DEFAULT '{}'; -- JSON object`,
	// Those that are there go to disk as soon as they sleep, as they did.
	`ALTER TABLE sprites ADD COLUMN hibernate_seconds INTEGER NOT NULL DEFAULT 0; -- 0: never
	UPDATE sprites SET hibernate_seconds = idle_seconds;`,
	`ALTER TABLE sprites ADD COLUMN held TEXT NOT NULL DEFAULT 'null'; -- JSON: sprites.Held, or null`,
	`CREATE TABLE epoch (n INTEGER NOT NULL, was INTEGER NOT NULL) STRICT; -- one row, which wal.go reads, too: see epoch.go
	INSERT INTO epoch (n, was) VALUES (0, 0);`,
	`CREATE TABLE doomed_memories (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID; -- see memories.go`,
	`ALTER TABLE sprites ADD COLUMN lost TEXT NOT NULL DEFAULT ''; -- empty: nothing, or it was told`,
	`SELECT 1; -- from here on idle_seconds and hibernate_seconds may be -1, ServersOwn`,
	`CREATE TABLE images (
		digest     TEXT PRIMARY KEY, -- of the manifest: sha256:HEX
		doc        TEXT NOT NULL,    -- JSON object: see the package image
		created_at INTEGER,          -- NULL: the image does not say
		pulled_at  INTEGER NOT NULL
	) STRICT;
	CREATE TABLE image_names (
		name   TEXT PRIMARY KEY,
		digest TEXT NOT NULL REFERENCES images (digest) ON DELETE CASCADE
	) STRICT, WITHOUT ROWID;
	CREATE INDEX image_names_by_digest ON image_names (digest);`,
	`CREATE TABLE build_steps (
		key        TEXT PRIMARY KEY,
		image      TEXT NOT NULL REFERENCES images (digest) ON DELETE CASCADE,
		created_at INTEGER NOT NULL,
		used_at    INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE INDEX build_steps_by_image ON build_steps (image);`,
	`CREATE TABLE job_steps (
		job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
		key TEXT NOT NULL, -- cove.StepKey
		doc TEXT NOT NULL, -- cove.Step
		PRIMARY KEY (job, key)
	) STRICT, WITHOUT ROWID;
	CREATE TABLE profiles (
		name       TEXT PRIMARY KEY,
		revision   INTEGER NOT NULL,
		doc        TEXT NOT NULL, -- cove.ProfileSettings
		created_at INTEGER NOT NULL,
		updated_at INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;`,
	`CREATE TABLE webhooks (
		name       TEXT PRIMARY KEY,
		url        TEXT NOT NULL,
		events     TEXT NOT NULL, -- JSON array
		secret     TEXT NOT NULL, -- the name of one of secrets
		private    INTEGER NOT NULL,
		created_at INTEGER NOT NULL,
		updated_at INTEGER NOT NULL
	) STRICT;
	CREATE TABLE webhook_deliveries (
		seq        INTEGER PRIMARY KEY AUTOINCREMENT,
		webhook    TEXT NOT NULL REFERENCES webhooks (name) ON DELETE CASCADE,
		event      TEXT NOT NULL,
		type       TEXT NOT NULL,
		state      TEXT NOT NULL, -- pending, delivered, failed, dropped
		body       TEXT NOT NULL, -- '': it is pending no more
		attempts   INTEGER NOT NULL DEFAULT 0,
		status     INTEGER NOT NULL DEFAULT 0,
		error      TEXT NOT NULL DEFAULT '',
		created_at INTEGER NOT NULL,
		next_at    INTEGER,
		done_at    INTEGER
	) STRICT;
	CREATE INDEX webhook_deliveries_by_webhook ON webhook_deliveries (webhook, state, seq);`,
	sealedMigration,
	`ALTER TABLE jobs DROP COLUMN settings;`,
	rewrittenMigration,
	environmentsMigration,
	changesMigration,
	`ALTER TABLE secrets ADD COLUMN login TEXT; -- JSON object: whose token the value is; NULL: it is none of a login's`,
	`ALTER TABLE connector_grants ADD COLUMN git TEXT NOT NULL DEFAULT ''; -- cove.GitGrant; '': of all that the connector lets through
	DROP INDEX connector_grants_once;
	CREATE UNIQUE INDEX connector_grants_once ON connector_grants (connector, sprite, label, ifnull(job, ''), git);`,
	placesMigration,
	`CREATE TABLE web_sessions (
		id           TEXT PRIMARY KEY,
		hash         BLOB NOT NULL UNIQUE, -- SHA-256 of the cookie
		token        TEXT NOT NULL,        -- the name of the principal whose rights it has
		browser      TEXT NOT NULL,
		address      TEXT NOT NULL,
		created_at   INTEGER NOT NULL,
		confirmed_at INTEGER NOT NULL,     -- when it came by a link last
		last_used    INTEGER NOT NULL,
		expires_at   INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;`,
	`CREATE TABLE job_keys (
		key    TEXT PRIMARY KEY,
		asker  TEXT NOT NULL, -- a token's ID; '': the owner
		digest TEXT NOT NULL, -- of the request
		job    TEXT NOT NULL UNIQUE REFERENCES jobs (id) ON DELETE CASCADE,
		made   INTEGER NOT NULL -- 0: a server has begun to make it
	) STRICT, WITHOUT ROWID;`,
	listsMigration,
	`CREATE TABLE job_comments (
		id         INTEGER PRIMARY KEY AUTOINCREMENT,
		job        TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
		path       TEXT NOT NULL,
		side       TEXT NOT NULL,    -- old or new
		line       INTEGER NOT NULL,
		quote      TEXT NOT NULL,
		text       TEXT NOT NULL,
		token      TEXT NOT NULL,    -- by ID; '': the owner
		created_at INTEGER NOT NULL
	) STRICT;
	CREATE INDEX job_comments_by_job ON job_comments (job);`,
	"CREATE INDEX jobs_by_before ON jobs (" + jobBefore + ");",
}

// jobBefore is the job that a job does again, or goes on with: a query's words must be those of its index.
const jobBefore = "coalesce(doc->>'$.resume_of', doc->>'$.retry_of')"

const (
	// sealedMigration seals the settings of jobs, which were in plain text: see seal.go.
	sealedMigration = `ALTER TABLE jobs ADD COLUMN sealed BLOB; -- the request's snapshot, sealed as secrets are; NULL: it was given up`

	// environmentsMigration makes a row for each sprite that was made for a job. If two jobs
	// have the same one, because a server was killed as one inherited it, the heir has it: it is
	// the younger one. A sprite here is there, or not. One at a backend is looked for when the
	// server has started.
	environmentsMigration = `CREATE TABLE environments (
		id         TEXT PRIMARY KEY,  -- an execution id
		version    INTEGER NOT NULL,  -- grows with each change
		job        TEXT NOT NULL UNIQUE,
		place      TEXT NOT NULL,     -- as jobs.sprite
		state      TEXT NOT NULL,
		doc        TEXT NOT NULL,     -- cove.Environment
		created_at INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE UNIQUE INDEX environments_by_place ON environments (place) WHERE state <> 'gone';
	INSERT OR IGNORE INTO environments (id, version, job, place, state, doc, created_at)
		SELECT coalesce(nullif(doc->>'$.execution_id', ''), id), 1, id, sprite, now,
			json_patch(json_object('changed_at', doc->>'$.created_at', 'sprite_id', doc->>'$.sprite_id'), CASE now
				WHEN 'destroying' THEN json_object('error', doc->>'$.sprite_removal.error', 'hint', doc->>'$.sprite_removal.hint', 'removal', json_object('reason', 'job_removed',
					'since', doc->>'$.sprite_removal.since', 'tries', doc->>'$.sprite_removal.tries', 'next_at', doc->>'$.sprite_removal.next_at'))
				WHEN 'unknown' THEN json_object('was', 'ready', 'unknown', json_object('error', 'not_seen', 'message', 'this server has not looked at it since it was updated', 'since', doc->>'$.created_at'))
				ELSE '{}' END), created_at
		FROM (SELECT *, CASE
				WHEN doc->>'$.sprite_removal' IS NOT NULL THEN 'destroying'
				WHEN state = 'installing' THEN 'creating'
				WHEN state IN ('queued', 'preparing') THEN 'preparing'
				WHEN state IN ('running', 'waiting') THEN 'ready'
				WHEN instr(sprite, '/') > 0 THEN 'unknown'
				WHEN EXISTS (SELECT 1 FROM sprites s WHERE s.name = jobs.sprite AND s.owner = 'job:' || jobs.id) THEN 'ready'
				ELSE 'gone' END AS now
			FROM jobs WHERE doc->>'$.owns_sprite')
		ORDER BY created_at DESC;
	UPDATE jobs SET doc = json_remove(doc, '$.owns_sprite', '$.sprite_removal');`

	// placesMigration removes the places of jobs that no longer wait. A server left them
	// there if it was killed when the job's turn came, or stopped the job before that.
	placesMigration = `UPDATE jobs SET doc = json_remove(doc, '$.place') WHERE doc->>'$.place' IS NOT NULL AND (state <> 'installing' OR doc->>'$.turn_at' IS NOT NULL);`

	// rewrittenMigration takes from the file what rows had that are not there any more.
	rewrittenMigration = `SELECT 1; -- the file is another one: see database.rewrite`
)

// migrate runs the migrations that the database has not seen, each in a
// transaction together with the new version. With forget, it gives up what the key does not
// open.
func (db *database) migrate(ctx context.Context, forget bool) error {
	var version int
	if err := db.write.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	made := version == 0
	if version > len(migrations) {
		return fmt.Errorf("it was written by a later cove (schema %d, this one knows %d): install that version, or use another data folder", version, len(migrations))
	}
	for ; version < len(migrations); version++ {
		err := error(nil)
		if migrations[version] == rewrittenMigration && !made {
			if err = db.rewrite(ctx); errors.Is(err, errNoRoom) { // the next start tries again: till then nothing needs it
				_, err = db.write.ExecContext(ctx, "INSERT OR IGNORE INTO settings (key, value) VALUES (?, '')", rewriteOwed)
			}
		}
		if err == nil {
			err = db.step(ctx, version, forget)
		}
		if err != nil {
			return fmt.Errorf("bring schema %d to %d: %w", version, version+1, err)
		}
	}
	return db.payRewrite(ctx)
}

// rewriteOwed is the setting of a store that was not rewritten, because its disk had no room.
const rewriteOwed = "rewrite_owed"

// payRewrite rewrites a store that was not, if there is room by now.
func (db *database) payRewrite(ctx context.Context) error {
	if !slices.Contains(migrations, rewrittenMigration) {
		return nil
	}
	var owed bool
	err := db.write.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM settings WHERE key = ?)", rewriteOwed).Scan(&owed)
	if err != nil || !owed {
		return err
	}
	if err := db.rewrite(ctx); errors.Is(err, errNoRoom) {
		return nil
	} else if err != nil {
		return err
	}
	_, err = db.write.ExecContext(ctx, "DELETE FROM settings WHERE key = ?", rewriteOwed)
	return err
}

func (db *database) step(ctx context.Context, version int, forget bool) error {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, migrations[version])
	if err == nil && migrations[version] == sealedMigration {
		err = db.sealSettings(ctx, tx, forget)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version+1))
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// sealSettings seals the settings of all jobs. Without their key, it is ErrKey.
func (db *database) sealSettings(ctx context.Context, tx *sql.Tx, forget bool) error {
	secrets := &Secrets{path: db.key}
	if forget {
		if err := secrets.forget(ctx, tx); err != nil {
			return err
		}
	}
	ids, err := collect(ctx, tx, func(row scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, "SELECT id FROM jobs")
	if err != nil || len(ids) == 0 {
		return err
	}
	key, err := secrets.keyFor(ctx, tx)
	for _, id := range ids {
		var settings []byte
		if err == nil {
			err = tx.QueryRowContext(ctx, "SELECT settings FROM jobs WHERE id = ?", id).Scan(&settings)
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE jobs SET sealed = ?, settings = '' WHERE id = ?", seal(key, jobSeal+id, settings), id)
	}
	return err
}

// errNoRoom says that a database was not rewritten, and is as it was.
var errNoRoom = errors.New("the disk has no room for a copy of the database")

// rewrite replaces the database's file by one that has only its rows. Nothing of changed or
// deleted rows is left, neither in free pages nor in the log. If the process is killed, the
// rewrite is done anew. No connection other than db.write may be open.
func (db *database) rewrite(ctx context.Context) error {
	fault.Reach(fault.SettingsSealed)
	path, err := filepath.EvalSymlinks(db.path) // the owner may have put it elsewhere
	if err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"-next")
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := db.write.ExecContext(ctx, "VACUUM INTO ?", next); err != nil {
		if errors.Is(diskError(err), syscall.ENOSPC) {
			err = errors.Join(errNoRoom, err)
		}
		return errors.Join(err, os.Remove(next)) // on a full disk, its room is needed
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if !logApplied(db.write) {
		return errors.New("the log could not be applied")
	}
	if err := db.write.Close(); err != nil {
		return err
	}
	if err := emptyLog(path); err != nil {
		return err
	}
	fault.Reach(fault.StoreCopied)
	if err := os.Rename(next, path); err != nil {
		return err
	}
	if err := atomicfile.SyncFolder(filepath.Dir(path)); err != nil {
		return err
	}
	fault.Reach(fault.StoreReplaced)
	db.openWrite()
	return nil
}
