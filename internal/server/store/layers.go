package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// A disk is a chain of layers over a base. One sprite owns the last layer, and writes
// it. The layers below are sealed, and may be in the chains of other sprites and of
// checkpoints. Nobody counts references: a layer that is in no chain may be removed.

// Checkpoint is a sealed chain of layers that a sprite can go back to.
type Checkpoint struct {
	Name      string    `json:"-"` // of the sprite's: v1, v2, …; empty in Next: by the number that is next
	Layer     string    `json:"-"` // the last of the chain
	Source    string    `json:"-"` // the checkpoint that it grew from; empty: none
	CreatedAt time.Time `json:"-"`

	Comment string   `json:"comment,omitempty"`
	Labels  []string `json:"labels,omitempty"`
	Auto    bool     `json:"auto,omitempty"` // nobody asked for it

	PauseMicros int64 `json:"pause_micros,omitempty"` // how long the sprite stood still for it
	CopiedBytes int64 `json:"copied_bytes,omitempty"` // of files that were copied then

	Memory      string `json:"memory,omitempty"` // the name of what was in memory; empty: that was not kept
	MemoryBytes int64  `json:"memory_bytes,omitempty"`

	// Added is how many bytes its disk has that its source's disk has not. It is set
	// once the chain no longer tells that, because layers were merged; nil: the chain
	// tells it.
	Added *int64 `json:"added,omitempty"`
}

// Next is a change of a sprite's disk that is about to be made. Layer is the layer that
// will be written. Checkpoint, if not nil, is what the chain before that layer becomes.
// Source, if not empty, is the checkpoint that the sprite goes back to. The zero value
// is no change.
type Next struct {
	Layer      string      `json:"layer,omitempty"`
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	Source     string      `json:"source,omitempty"`
}

// newLayer adds a layer on top of parent, or of the base. A parent that is not
// there, or is about to go, is ErrNotFound.
func newLayer(ctx context.Context, tx *sql.Tx, parent string) (string, error) {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	id := hex.EncodeToString(b)
	if parent == "" {
		_, err := tx.ExecContext(ctx, "INSERT INTO layers (id) VALUES (?)", id)
		return id, err
	}
	return id, exactlyOne(tx.ExecContext(ctx, "INSERT INTO layers (id, parent) SELECT ?, id FROM layers WHERE id = ? AND doomed = 0", id, parent))
}

// Begin notes a change of a sprite's disk: the sprite will write a new layer on top of
// parent. The argument next says what else happens: the present state becomes a
// checkpoint, or the sprite goes back to one. Commit or Abort ends the change. If the
// server dies in between, the sprite has the change as Next.
func (t *Sprites) Begin(ctx context.Context, id, parent string, next Next) (Next, error) {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		var err error
		if next.Layer, err = newLayer(ctx, tx, parent); err != nil {
			return err
		}
		doc, err := json.Marshal(next)
		if err != nil {
			return err
		}
		return exactlyOne(tx.ExecContext(ctx, "UPDATE sprites SET next = ? WHERE id = ? AND next = '{}'", string(doc), id))
	})
	if err != nil {
		return Next{}, fmt.Errorf("begin a layer of sprite %s: %w", id, err)
	}
	return next, nil
}

// Commit makes the change in a sprite's Next. If the change makes a checkpoint, Commit
// returns that with its name. The layers from before are in the checkpoint, or may be
// removed.
func (t *Sprites) Commit(ctx context.Context, id string, next Next) (*Checkpoint, error) {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		var layer, source string
		if err := tx.QueryRowContext(ctx, "SELECT layer, source FROM sprites WHERE id = ?", id).Scan(&layer, &source); err != nil {
			return notFound(err)
		}
		if c := next.Checkpoint; c != nil {
			c.Layer, c.Source = layer, source
			if err := addCheckpoint(ctx, tx, id, c); err != nil {
				return err
			}
			source = c.Name
		}
		if next.Source != "" {
			source = next.Source
		}
		return exactlyOne(tx.ExecContext(ctx, "UPDATE sprites SET layer = ?, source = ?, next = '{}' WHERE id = ? AND json_extract(next, '$.layer') = ?", next.Layer, source, id, next.Layer))
	})
	if err != nil {
		return nil, fmt.Errorf("store the new state of sprite %s: %w", id, err)
	}
	t.notify()
	return next.Checkpoint, nil
}

// addCheckpoint adds a checkpoint, with the next number if it has no name.
func addCheckpoint(ctx context.Context, tx *sql.Tx, sprite string, c *Checkpoint) error {
	if c.Name == "" {
		var n int64
		if err := tx.QueryRowContext(ctx, "UPDATE sprites SET numbered = numbered + 1 WHERE id = ? RETURNING numbered", sprite).Scan(&n); err != nil {
			return notFound(err)
		}
		c.Name = fmt.Sprintf("v%d", n)
	}
	if c.CreatedAt.IsZero() {
		c.CreatedAt = now()
	}
	doc, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO checkpoints (sprite, name, layer, source, created_at, doc) VALUES (?, ?, ?, ?, ?, ?)",
		sprite, c.Name, c.Layer, c.Source, micros(c.CreatedAt), string(doc))
	if err != nil {
		return err
	}
	return reprieve(ctx, tx, c.Memory)
}

// Abort forgets a sprite's Next. ErrNotFound says that it is another one by now, or none.
func (t *Sprites) Abort(ctx context.Context, id string, next Next) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "UPDATE sprites SET next = '{}' WHERE id = ? AND json_extract(next, '$.layer') = ?", id, next.Layer))
	})
	if err != nil {
		return fmt.Errorf("leave sprite %s as it is: %w", id, err)
	}
	return nil
}

const checkpointColumns = "name, layer, source, created_at, doc"

func scanCheckpoint(row scanner) (Checkpoint, error) {
	var c Checkpoint
	var doc []byte
	var created sql.NullInt64
	if err := row.Scan(&c.Name, &c.Layer, &c.Source, &created, &doc); err != nil {
		return c, err
	}
	c.CreatedAt = fromMicros(created)
	return c, json.Unmarshal(doc, &c)
}

// Checkpoints returns a sprite's checkpoints, the newest first.
func (t *Sprites) Checkpoints(ctx context.Context, id string) ([]Checkpoint, error) {
	list, err := collect(ctx, t.db.read, scanCheckpoint, "SELECT "+checkpointColumns+" FROM checkpoints WHERE sprite = ? ORDER BY created_at DESC, rowid DESC", id)
	if err != nil {
		return nil, fmt.Errorf("list the checkpoints of sprite %s: %w", id, err)
	}
	return list, nil
}

// Checkpoint returns one checkpoint of a sprite; ErrNotFound if there is none.
func (t *Sprites) Checkpoint(ctx context.Context, id, name string) (Checkpoint, error) {
	c, err := scanCheckpoint(t.db.read.QueryRowContext(ctx, "SELECT "+checkpointColumns+" FROM checkpoints WHERE sprite = ? AND name = ?", id, name))
	if err != nil {
		return c, fmt.Errorf("checkpoint %s of sprite %s: %w", name, id, notFound(err))
	}
	return c, nil
}

// SealedBy returns the sprite that has a checkpoint with this last layer; ErrNotFound
// if there is none.
func (t *Sprites) SealedBy(ctx context.Context, layer string) (id string, err error) {
	if err := t.db.read.QueryRowContext(ctx, "SELECT sprite FROM checkpoints WHERE layer = ?", layer).Scan(&id); err != nil {
		return "", fmt.Errorf("the checkpoint of layer %s: %w", layer, notFound(err))
	}
	return id, nil
}

// DeleteCheckpoint forgets a checkpoint, which added so many bytes to its source.
// States that grew from it get that source. Layers of its chain that nobody else has
// may be removed. If the sprite goes on from the checkpoint, or is about to, the error is
// ErrInUse.
func (t *Sprites) DeleteCheckpoint(ctx context.Context, id, name string, added int64) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		var wanted bool
		if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sprites WHERE id = ?1 AND ?2 IN (source, ifnull(next->>'$.source', '')))", id, name).Scan(&wanted); err != nil {
			return err
		}
		if wanted {
			return ErrInUse
		}
		var source, memory string
		if err := tx.QueryRowContext(ctx, "DELETE FROM checkpoints WHERE sprite = ? AND name = ? RETURNING source, ifnull(doc->>'$.memory', '')", id, name).Scan(&source, &memory); err != nil {
			return notFound(err)
		}
		if err := markMemoryUnreferenced(ctx, tx, memory); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE checkpoints SET source = ?3, doc = CASE WHEN doc->'$.added' IS NULL THEN doc ELSE json_set(doc, '$.added', doc->>'$.added' + ?4) END
			WHERE sprite = ?1 AND source = ?2`, id, name, source, added)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete checkpoint %s of sprite %s: %w", name, id, err)
	}
	return nil
}

// Chain returns the layers of a disk by its last one, the lowest first. A layer that is not
// there, or is about to go, is ErrNotFound.
func (t *Sprites) Chain(ctx context.Context, layer string) ([]string, error) {
	chain, err := collect(ctx, t.db.read, scanText, `WITH RECURSIVE chain (id, parent, depth) AS (
			SELECT id, parent, 0 FROM layers WHERE id = ? AND doomed = 0
			UNION ALL SELECT l.id, l.parent, depth + 1 FROM layers l JOIN chain c ON l.id = c.parent
		) SELECT id FROM chain ORDER BY depth DESC`, layer)
	if err == nil && len(chain) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("the layers below %s: %w", layer, err)
	}
	return chain, nil
}

// Layer is one of a chain.
type Layer struct {
	ID    string
	Level int // how often what it has was merged; see Merge
}

// Layers returns the layers that the store knows, also those that are about to go.
func (t *Sprites) Layers(ctx context.Context) ([]string, error) {
	all, err := collect(ctx, t.db.read, scanText, "SELECT id FROM layers")
	if err != nil {
		return nil, fmt.Errorf("list the layers: %w", err)
	}
	return all, nil
}

// Listed returns those of some layers whose files are listed, in the same order: they have a
// folder.
func (t *Sprites) Listed(ctx context.Context, layers []string) ([]string, error) {
	some, err := json.Marshal(layers)
	if err != nil {
		return nil, err
	}
	listed, err := collect(ctx, t.db.read, scanText, `SELECT l.id FROM json_each(?) some JOIN layers l ON l.id = some.value
		WHERE json_extract(l.facts, '$.digest') IS NOT NULL ORDER BY some.key`, string(some))
	if err != nil {
		return nil, fmt.Errorf("which layers are listed: %w", err)
	}
	return listed, nil
}

// Levels returns the layers of a disk, the lowest first, with their levels.
func (t *Sprites) Levels(ctx context.Context, layer string) ([]Layer, error) {
	chain, err := collect(ctx, t.db.read, func(row scanner) (l Layer, err error) { return l, row.Scan(&l.ID, &l.Level) }, `WITH RECURSIVE chain (id, parent, level, depth) AS (
			SELECT id, parent, level, 0 FROM layers WHERE id = ?
			UNION ALL SELECT l.id, l.parent, l.level, depth + 1 FROM layers l JOIN chain c ON l.id = c.parent
		) SELECT id, level FROM chain ORDER BY depth DESC`, layer)
	if err != nil {
		return nil, fmt.Errorf("the layers below %s: %w", layer, err)
	}
	return chain, nil
}

// NewLowest adds a layer that nobody has yet, to lie on the base.
func (t *Sprites) NewLowest(ctx context.Context) (id string, err error) {
	err = t.db.update(ctx, func(tx *sql.Tx) error {
		id, err = newLayer(ctx, tx, "")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("begin a disk: %w", err)
	}
	return id, nil
}

// NewMerged adds a layer that nobody has yet, to become the same as some others on top
// of each other. The lowest of these is lowest, and the new layer's level is one more
// than the level of lowest.
func (t *Sprites) NewMerged(ctx context.Context, lowest string) (id string, err error) {
	err = t.db.update(ctx, func(tx *sql.Tx) error {
		var parent sql.NullString
		var level int
		if err := tx.QueryRowContext(ctx, "SELECT parent, level FROM layers WHERE id = ? AND doomed = 0", lowest).Scan(&parent, &level); err != nil {
			return notFound(err)
		}
		if id, err = newLayer(ctx, tx, parent.String); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE layers SET level = ? WHERE id = ?", level+1, id)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("begin to merge layers: %w", err)
	}
	return id, nil
}

// Replace puts merged in place of a sealed layer. merged is the same as that layer
// together with some of those below it. It takes its place in chains, and as the last
// layer of a checkpoint, which gets added. It has the damage of the layers that it is made of.
// Layers that nobody has then may be removed.
func (t *Sprites) Replace(ctx context.Context, layer, merged string, added *int64) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE layers SET parent = ? WHERE parent = ?", merged, layer); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE checkpoints SET layer = ?1, doc = CASE WHEN ?3 IS NULL OR doc->'$.added' IS NOT NULL THEN doc ELSE json_set(doc, '$.added', ?3) END
			WHERE layer = ?2`, merged, layer, added)
		if err != nil {
			return err
		}
		// The topmost damage, of the layers from this one down to what merged lies on.
		_, err = tx.ExecContext(ctx, `WITH RECURSIVE made (id, parent, damage, depth) AS (
				SELECT id, parent, facts->>'$.damage', 0 FROM layers WHERE id = ?2
				UNION ALL SELECT l.id, l.parent, l.facts->>'$.damage', depth + 1 FROM layers l JOIN made m ON l.id = m.parent
					WHERE l.id IS NOT (SELECT parent FROM layers WHERE id = ?1)
			) UPDATE layers SET facts = json_set(facts, '$.damage', found.damage)
				FROM (SELECT damage FROM made WHERE damage IS NOT NULL ORDER BY depth LIMIT 1) AS found WHERE layers.id = ?1`, merged, layer)
		return err
	})
	if err != nil {
		return fmt.Errorf("put layer %s in place of %s: %w", merged, layer, err)
	}
	return nil
}

// Facts are what is known of a sealed layer.
type Facts struct {
	Digest string `json:"digest,omitempty"` // SHA-256 of the list of its files; empty: there is none yet
	Files  int64  `json:"files,omitempty"`
	Size   int64  `json:"size,omitempty"`   // of their contents
	Disk   int64  `json:"disk,omitempty"`   // bytes on the disk
	Damage string `json:"damage,omitempty"` // what was found wrong with it
}

// SetFacts stores what is known of a layer. One that is gone is no error.
func (t *Sprites) SetFacts(ctx context.Context, layer string, f Facts) error {
	doc, err := json.Marshal(f)
	if err == nil {
		err = t.db.update(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE layers SET facts = ? WHERE id = ?", string(doc), layer)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("store what is known of layer %s: %w", layer, err)
	}
	return nil
}

// FactsOf returns what is known of a layer; ErrNotFound if there is none.
func (t *Sprites) FactsOf(ctx context.Context, layer string) (f Facts, err error) {
	var doc []byte
	if err := t.db.read.QueryRowContext(ctx, "SELECT facts FROM layers WHERE id = ?", layer).Scan(&doc); err != nil {
		return f, fmt.Errorf("layer %s: %w", layer, notFound(err))
	}
	return f, json.Unmarshal(doc, &f)
}

// Unlisted returns the sealed layers whose files are not listed yet.
func (t *Sprites) Unlisted(ctx context.Context) ([]string, error) {
	list, err := collect(ctx, t.db.read, scanText, `SELECT id FROM layers l WHERE doomed = 0 AND json_extract(facts, '$.digest') IS NULL
		AND id NOT IN (SELECT layer FROM sprites)
		AND (EXISTS (SELECT 1 FROM layers WHERE parent = l.id) OR EXISTS (SELECT 1 FROM checkpoints WHERE layer = l.id) OR EXISTS (SELECT 1 FROM installs WHERE layer = l.id))`)
	if err != nil {
		return nil, fmt.Errorf("find layers to be listed: %w", err)
	}
	return list, nil
}

// SpriteOn returns a sprite that has the layer in its disk or in a checkpoint. It
// returns the same one as long as that is there. If there is none, it returns the
// layer.
func (t *Sprites) SpriteOn(ctx context.Context, layer string) (id string, err error) {
	err = t.db.read.QueryRowContext(ctx, `WITH RECURSIVE up (id) AS (VALUES (?1) UNION SELECT l.id FROM layers l JOIN up ON l.parent = up.id)
		SELECT COALESCE(min(sprite), ?1) FROM (SELECT s.id AS sprite FROM up JOIN sprites s ON s.layer = up.id
			UNION ALL SELECT c.sprite FROM up JOIN checkpoints c ON c.layer = up.id)`, layer).Scan(&id)
	if err != nil {
		return "", fmt.Errorf("find the sprite of layer %s: %w", layer, err)
	}
	return id, nil
}

// Usage is a layer of a sprite: what is known of it, and who has it.
type Usage struct {
	Facts
	Parent string // empty: the base
	States int    // that have it in their chains: checkpoints, installs, and what sprites are now
	Level  int    // how often what it has was merged: above 0 it shares files with layers that it was made of
}

// Usages returns, by layer, those of a sprite's disk and of its checkpoints.
func (t *Sprites) Usages(ctx context.Context, id string) (map[string]Usage, error) {
	type row struct {
		layer string
		Usage
	}
	all, err := collect(ctx, t.db.read, func(s scanner) (r row, err error) {
		var doc []byte
		if err := s.Scan(&r.layer, &r.Parent, &r.States, &r.Level, &doc); err != nil {
			return r, err
		}
		return r, json.Unmarshal(doc, &r.Facts)
	}, `WITH RECURSIVE mine (id) AS (
			SELECT layer FROM sprites WHERE id = ?1 UNION SELECT layer FROM checkpoints WHERE sprite = ?1
			UNION SELECT l.parent FROM layers l JOIN mine m ON l.id = m.id WHERE l.parent IS NOT NULL
		), states (state, id) AS ( -- a row for each layer of each
			SELECT id, layer FROM sprites UNION ALL SELECT name, layer FROM checkpoints UNION ALL SELECT key, layer FROM installs
			UNION ALL SELECT s.state, l.parent FROM layers l JOIN states s ON l.id = s.id WHERE l.parent IS NOT NULL
		) SELECT l.id, ifnull(l.parent, ''), c.n, l.level, l.facts FROM layers l
			JOIN (SELECT id, count(*) AS n FROM states GROUP BY id) c ON c.id = l.id WHERE l.id IN (SELECT id FROM mine)`, id)
	if err != nil {
		return nil, fmt.Errorf("the layers of sprite %s: %w", id, err)
	}
	usages := make(map[string]Usage, len(all))
	for _, r := range all {
		usages[r.layer] = r.Usage
	}
	return usages, nil
}

func scanText(row scanner) (s string, err error) { return s, row.Scan(&s) }

// MarkUnreferenced marks the layers that are in no chain, except those that something is
// about to be made for (except). It returns all marked layers, the topmost first. Nothing is
// ever put on top of a marked layer again: its folder may be removed, and then the layer
// forgotten.
func (t *Sprites) MarkUnreferenced(ctx context.Context, except ...string) ([]string, error) {
	type link struct {
		id     string
		parent sql.NullString
	}
	var all []link
	kept, err := json.Marshal(append([]string{}, except...)) // never null
	if err != nil {
		return nil, err
	}
	err = t.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `WITH RECURSIVE used (id) AS (
				SELECT layer FROM sprites UNION SELECT json_extract(next, '$.layer') FROM sprites UNION SELECT layer FROM checkpoints UNION SELECT layer FROM installs
				UNION SELECT l.parent FROM layers l JOIN used u ON l.id = u.id
			) UPDATE layers SET doomed = 1 WHERE doomed = 0 AND id NOT IN (SELECT id FROM used WHERE id IS NOT NULL) AND id NOT IN (SELECT value FROM json_each(?))`, string(kept))
		if err != nil {
			return err
		}
		all, err = collect(ctx, tx, func(row scanner) (l link, err error) { return l, row.Scan(&l.id, &l.parent) }, "SELECT id, parent FROM layers WHERE doomed = 1")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find unused layers: %w", err)
	}
	parents := map[string]string{}
	for _, l := range all {
		parents[l.id] = l.parent.String
	}
	depths := map[string]int{}
	ids := make([]string, len(all))
	for i, l := range all {
		ids[i] = l.id
		for id := l.id; parents[id] != ""; id = parents[id] {
			depths[l.id]++
		}
	}
	slices.SortStableFunc(ids, func(a, b string) int { return depths[b] - depths[a] })
	return ids, nil
}

// Forget forgets a layer that is in no chain, and is not below another.
func (t *Sprites) Forget(ctx context.Context, layer string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM layers WHERE id = ?", layer)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget layer %s: %w", layer, err)
	}
	return nil
}
