package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// Sprite is a sprite as the store knows it.
type Sprite struct {
	ID          string // 16 hexadecimal digits
	Name        string
	MachineID   string // 32 hexadecimal digits
	Base        string
	Include     []string
	Env         map[string]string
	Config      sprites.Config
	Labels      []string
	URL         sprites.URLSettings
	Policy      sprites.NetworkPolicy
	IdleSeconds int64 // 0: never sleeps; ServersOwn: as the server says
	Hibernate   int64 // seconds, after which the memory of one that sleeps goes to disk; 0: never; ServersOwn: as the server says
	Owner       string
	Retention   sprites.Retention // of the checkpoints that nobody asked for; zero: all stay
	LeaseUntil  time.Time         // zero: no lease
	Status      sprites.Status
	Incarnation int64 // of its last sandbox; see Next
	LastError   string
	Lost        string        // why its programs are gone, though nobody asked for that, until a command was told; empty: they are not
	Held        *sprites.Held // why it is paused, or may not start; nil: it may
	Deleting    bool          // its disk is being removed; only another delete may touch it
	Layer       string        // of its disk, the one that is written
	Source      string        // the checkpoint that its disk has grown from; empty: none
	Next        Next          // what is about to become of its disk
	CreatedAt   time.Time
	UpdatedAt   time.Time
	LastRunning time.Time // zero: never
}

// ServersOwn is the time of a sprite that has none of its own. Sprites from before schema
// 17 have the time of the server that made them.
const ServersOwn = -1

// Sprites are the server's sprites.
type Sprites struct {
	db *database
	watchers
}

const spriteColumns = `id, name, machine_id, base, include, env, config, labels, url_settings, idle_seconds,
	owner, lease_until, status, incarnation, last_error, deleting, created_at, updated_at, last_running, policy, layer, source, next, retention, hibernate_seconds, held, lost`

const spriteValues = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

func scanSprite(row scanner) (Sprite, error) {
	var s Sprite
	var include, env, config, labels, urls, policy, next, retention, held []byte
	var lease, created, updated, ran sql.NullInt64
	err := row.Scan(&s.ID, &s.Name, &s.MachineID, &s.Base, &include, &env, &config, &labels, &urls, &s.IdleSeconds,
		&s.Owner, &lease, &s.Status, &s.Incarnation, &s.LastError, &s.Deleting, &created, &updated, &ran, &policy, &s.Layer, &s.Source, &next, &retention, &s.Hibernate, &held, &s.Lost)
	if err != nil {
		return s, err
	}
	s.LeaseUntil, s.CreatedAt, s.UpdatedAt, s.LastRunning = fromMicros(lease), fromMicros(created), fromMicros(updated), fromMicros(ran)
	return s, errors.Join(
		json.Unmarshal(include, &s.Include),
		json.Unmarshal(env, &s.Env),
		json.Unmarshal(config, &s.Config),
		json.Unmarshal(labels, &s.Labels),
		json.Unmarshal(urls, &s.URL),
		json.Unmarshal(policy, &s.Policy),
		json.Unmarshal(next, &s.Next),
		json.Unmarshal(retention, &s.Retention),
		json.Unmarshal(held, &s.Held))
}

// values are a sprite's columns, in the order of spriteColumns.
func (s Sprite) values() ([]any, error) {
	var texts [9]string
	for i, v := range []any{s.Include, s.Env, s.Config, s.Labels, s.URL, s.Policy, s.Next, s.Retention, s.Held} {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		texts[i] = string(b)
	}
	return []any{s.ID, s.Name, s.MachineID, s.Base, texts[0], texts[1], texts[2], texts[3], texts[4], s.IdleSeconds,
		s.Owner, micros(s.LeaseUntil), s.Status, s.Incarnation, s.LastError, s.Deleting,
		micros(s.CreatedAt), micros(s.UpdatedAt), micros(s.LastRunning), texts[5], s.Layer, s.Source, texts[6], texts[7], s.Hibernate, texts[8], s.Lost}, nil
}

// Organization is the one that all sprites of a server belong to.
const Organization = "local"

// Info describes a sprite as far as the store knows it: neither its URL, nor what only its
// sandbox tells. Of one that runs, it says that it is cold.
func (s Sprite) Info() sprites.Info {
	info := sprites.Info{
		ID:           s.ID,
		Name:         s.Name,
		Organization: Organization,
		URLSettings:  s.URL,
		Status:       sprites.StatusCold,
		Labels:       s.Labels,
		Environment:  s.Env,
		CreatedAt:    s.CreatedAt,
		UpdatedAt:    s.UpdatedAt.UTC(),
		Cove: &sprites.Details{
			Base:        s.Base,
			Include:     s.Include,
			Incarnation: s.Incarnation,
			Owner:       s.Owner,
			Removing:    s.Deleting,
			LastError:   s.LastError,
		},
	}
	if info.Labels == nil {
		info.Labels = []string{}
	}
	if s.Config != (sprites.Config{}) {
		info.Config = &s.Config
	}
	if !s.LastRunning.IsZero() {
		info.LastRunning = &s.LastRunning
	}
	if s.Retention != (sprites.Retention{}) {
		info.Cove.Retention = &s.Retention
	}
	if !s.LeaseUntil.IsZero() {
		info.Cove.LeaseUntil = &s.LeaseUntil
	}
	if s.Status == sprites.StatusWarm {
		info.Status = s.Status
	}
	return info
}

// Create adds a sprite, and sets Layer and its times. The sprite's disk gets a new layer on
// top of s.Layer, or of the base if s.Layer is empty. A name or ID that is taken is
// ErrExists, and a layer that is not there ErrNotFound. A base that is neither an image of
// Images nor the host's is ErrNoImage.
func (t *Sprites) Create(ctx context.Context, s *Sprite) error {
	s.CreatedAt = now()
	s.UpdatedAt = s.CreatedAt
	err := t.db.update(ctx, func(tx *sql.Tx) (err error) {
		var taken bool
		if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sprites WHERE name = ? OR id = ?)", s.Name, s.ID).Scan(&taken); err != nil {
			return err
		}
		if taken {
			return ErrExists
		}
		if err := hasImage(ctx, tx, s.Base); err != nil {
			return err
		}
		if s.Layer, err = newLayer(ctx, tx, s.Layer); err != nil {
			return err
		}
		values, err := s.values()
		if err != nil {
			return err
		}
		if _, err = tx.ExecContext(ctx, "INSERT INTO sprites ("+spriteColumns+") VALUES "+spriteValues, values...); err != nil {
			return err
		}
		if err := queueSprite(ctx, tx, cove.EventSpriteCreated, *s); err != nil {
			return err
		}
		return reprieve(ctx, tx, s.ID)
	})
	if err != nil {
		return fmt.Errorf("store sprite %s: %w", s.Name, err)
	}
	t.notify()
	return nil
}

// PoolOwner is the owner of a sprite whose sandbox is kept ready for another one.
const PoolOwner = "pool"

// Take turns the sprite of the pool that has the ID of s into the sprite s. It sets
// Layer, Incarnation and the times of s. A name that is taken is ErrExists, a sprite
// that is not the pool's, or is over another base, ErrNotFound.
func (t *Sprites) Take(ctx context.Context, s *Sprite) error {
	s.CreatedAt = now()
	s.UpdatedAt = s.CreatedAt
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		var taken bool
		if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sprites WHERE name = ?)", s.Name).Scan(&taken); err != nil {
			return err
		}
		if taken {
			return ErrExists
		}
		err := tx.QueryRowContext(ctx, "SELECT layer, incarnation FROM sprites WHERE id = ? AND owner = ? AND base = ? AND deleting = 0", s.ID, PoolOwner, s.Base).Scan(&s.Layer, &s.Incarnation)
		if err != nil {
			return notFound(err)
		}
		values, err := s.values()
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE sprites SET ("+spriteColumns+") = "+spriteValues+" WHERE id = ?", append(values, s.ID)...)
		if err != nil {
			return err
		}
		return queueSprite(ctx, tx, cove.EventSpriteCreated, *s)
	})
	if err != nil {
		return fmt.Errorf("store sprite %s: %w", s.Name, err)
	}
	t.notify()
	return nil
}

// Get returns a sprite by name; ErrNotFound if there is none.
func (t *Sprites) Get(ctx context.Context, name string) (Sprite, error) {
	s, err := scanSprite(t.db.read.QueryRowContext(ctx, "SELECT "+spriteColumns+" FROM sprites WHERE name = ?", name))
	if err != nil {
		return s, fmt.Errorf("sprite %s: %w", name, notFound(err))
	}
	return s, nil
}

// ByID returns a sprite; ErrNotFound if there is none.
func (t *Sprites) ByID(ctx context.Context, id string) (Sprite, error) {
	s, err := scanSprite(t.db.read.QueryRowContext(ctx, "SELECT "+spriteColumns+" FROM sprites WHERE id = ?", id))
	if err != nil {
		return s, fmt.Errorf("sprite %s: %w", id, notFound(err))
	}
	return s, nil
}

// SpriteFilter selects sprites; the zero value is all of them.
type SpriteFilter struct {
	Name   string // exactly; empty: any
	Prefix string // of the name
	Scope  string // another prefix of the name
	Label  string // one that it has; empty: any
	JobsBy string // the token whose jobs they were made for; empty: any
	After  string // names that sort after this one
	Limit  int    // 0: no limit

	Status sprites.Status // empty: any
	Held   bool           // only those that may not run now
	Text   string         // that stands in the name or a label; empty: any

	Public bool // not those in which agents are being installed, nor those of builds and of the pool
}

func (f SpriteFilter) where() (string, []any) {
	where, args := " WHERE name > ?", []any{f.After}
	if f.Name != "" {
		where += " AND name = ?"
		args = append(args, f.Name)
	}
	for _, p := range []string{f.Prefix, f.Scope} {
		if p != "" {
			where += " AND substr(name, 1, length(?)) = ?"
			args = append(args, p, p)
		}
	}
	if f.JobsBy != "" {
		where += " AND EXISTS (SELECT 1 FROM jobs j WHERE j.sprite = sprites.name AND sprites.owner = 'job:' || j.id AND j.doc->>'$.by' = ?)"
		args = append(args, f.JobsBy)
	}
	if f.Public {
		where += " AND substr(owner, 1, length(?)) <> ? AND owner NOT IN (?, ?)"
		args = append(args, InstallOwner, InstallOwner, PoolOwner, BuildOwner)
	}
	if f.Status != "" {
		where += " AND status = ?"
		args = append(args, f.Status)
	}
	if f.Held {
		where += " AND held <> 'null'"
	}
	if f.Text != "" {
		cond, values := found(`(name LIKE ?1 ESCAPE '\' OR EXISTS (SELECT 1 FROM json_each(labels) WHERE json_each.value LIKE ?1 ESCAPE '\'))`, f.Text)
		where, args = where+cond, append(args, values...)
	}
	if f.Label != "" {
		where += " AND EXISTS (SELECT 1 FROM json_each(labels) WHERE json_each.value = ?)"
		args = append(args, f.Label)
	}
	return where, args
}

// List returns the sprites that filter selects, by name.
func (t *Sprites) List(ctx context.Context, filter SpriteFilter) ([]Sprite, error) {
	where, args := filter.where()
	query := "SELECT " + spriteColumns + " FROM sprites" + where + " ORDER BY name"
	if filter.Limit > 0 {
		query += " LIMIT ?"
		args = append(args, filter.Limit)
	}
	list, err := collect(ctx, t.db.read, scanSprite, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list sprites: %w", err)
	}
	return list, nil
}

// Count counts the sprites that filter selects, by status.
func (t *Sprites) Count(ctx context.Context, filter SpriteFilter) (map[sprites.Status]int, error) {
	where, args := filter.where()
	count := map[sprites.Status]int{}
	_, err := collect(ctx, t.db.read, func(row scanner) (struct{}, error) {
		var status sprites.Status
		var n int
		err := row.Scan(&status, &n)
		count[status] = n
		return struct{}{}, err
	}, "SELECT status, count(*) FROM sprites"+where+" GROUP BY status", args...)
	if err != nil {
		return nil, fmt.Errorf("count sprites: %w", err)
	}
	return count, nil
}

// Update changes a sprite in a transaction. It calls f with the sprite as it is, and
// stores the result unless f returns an error. The function f must not use the store.
// The ID, the name, the incarnation, the disk and the time of creation stay. UpdatedAt
// is f's affair.
func (t *Sprites) Update(ctx context.Context, id string, f func(*Sprite) error) (Sprite, error) {
	var s Sprite
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		var err error
		s, err = scanSprite(tx.QueryRowContext(ctx, "SELECT "+spriteColumns+" FROM sprites WHERE id = ?", id))
		if err != nil {
			return notFound(err)
		}
		fixed := s
		if err := f(&s); err != nil {
			return err
		}
		s.ID, s.Name, s.Incarnation, s.CreatedAt = fixed.ID, fixed.Name, fixed.Incarnation, fixed.CreatedAt
		s.Layer, s.Source, s.Next = fixed.Layer, fixed.Source, fixed.Next
		values, err := s.values()
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE sprites SET ("+spriteColumns+") = "+spriteValues+" WHERE id = ?", append(values, id)...)
		if err != nil || !failed(fixed, s) {
			return err
		}
		return queueSprite(ctx, tx, cove.EventSpriteFailed, s)
	})
	if err != nil {
		return Sprite{}, fmt.Errorf("update sprite %s: %w", id, err)
	}
	t.notify()
	return s, nil
}

// Next raises a sprite's incarnation and returns the new one. No number is ever
// returned twice.
func (t *Sprites) Next(ctx context.Context, id string) (int64, error) {
	var n int64
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		return notFound(tx.QueryRowContext(ctx, "UPDATE sprites SET incarnation = incarnation + 1 WHERE id = ? RETURNING incarnation", id).Scan(&n))
	})
	if err != nil {
		return 0, fmt.Errorf("number the next sandbox of sprite %s: %w", id, err)
	}
	return n, nil
}

// Reached notes that a sprite has had a sandbox of that incarnation: Next goes on from it.
func (t *Sprites) Reached(ctx context.Context, id string, incarnation int64) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE sprites SET incarnation = ?2 WHERE id = ?1 AND incarnation < ?2", id, incarnation)
		return err
	})
	if err != nil {
		return fmt.Errorf("note the incarnation of sprite %s: %w", id, err)
	}
	return nil
}

// Delete forgets a sprite, and that connectors were granted to it. An environment that it is
// is gone with it.
func (t *Sprites) Delete(ctx context.Context, id string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		s, err := scanSprite(tx.QueryRowContext(ctx, "SELECT "+spriteColumns+" FROM sprites WHERE id = ?", id))
		if err == nil {
			err = queueSprite(ctx, tx, cove.EventSpriteDeleted, s)
		}
		if err != nil {
			return notFound(err)
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM connector_grants WHERE sprite = (SELECT name FROM sprites WHERE id = ?)", id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO doomed_memories SELECT doc->>'$.memory' FROM checkpoints WHERE sprite = ? AND doc->>'$.memory' IS NOT NULL", id); err != nil {
			return err
		}
		if err := loseEnvironment(ctx, tx, s.Name); err != nil {
			return err
		}
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM sprites WHERE id = ?", id))
	})
	if err != nil {
		return fmt.Errorf("delete sprite %s: %w", id, err)
	}
	t.notify()
	return nil
}
