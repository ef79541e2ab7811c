package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
)

// JobLabel marks the sprites that jobs have made.
const JobLabel = "cove-job"

// Connectors are the definitions of connectors, and whom they are granted to. They
// name secrets, and have none.
type Connectors struct{ db *database }

func scanConnector(row scanner) (cove.Connector, error) {
	var c cove.Connector
	var doc []byte
	var created, updated sql.NullInt64
	if err := row.Scan(&doc, &created, &updated); err != nil {
		return c, err
	}
	err := json.Unmarshal(doc, &c)
	c.CreatedAt, c.UpdatedAt = fromMicros(created), fromMicros(updated)
	return c, err
}

const connectorColumns = "doc, c.created_at, c.updated_at"

// Put stores a definition, in place of one of the same name, whose grants stay.
func (k *Connectors) Put(ctx context.Context, c cove.Connector) error {
	return k.put(ctx, c, "DO UPDATE SET doc = excluded.doc, updated_at = excluded.updated_at")
}

// Add stores a definition, unless there is one of the same name, which stays as it is.
func (k *Connectors) Add(ctx context.Context, c cove.Connector) error {
	return k.put(ctx, c, "DO NOTHING")
}

// put stores a definition. conflict says what becomes of one of the same name.
func (k *Connectors) put(ctx context.Context, c cove.Connector, conflict string) error {
	stored := now()
	c.Grants, c.CreatedAt, c.UpdatedAt = nil, stored, stored
	doc, err := json.Marshal(c)
	if err != nil {
		return err
	}
	err = k.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO connectors (name, doc, created_at, updated_at) VALUES (?1, ?2, ?3, ?3)
			ON CONFLICT (name) `+conflict, c.Name, string(doc), micros(stored))
		return err
	})
	if err != nil {
		return fmt.Errorf("store connector %s: %w", c.Name, err)
	}
	return nil
}

// Get returns a connector with its grants; ErrNotFound if there is none.
func (k *Connectors) Get(ctx context.Context, name string) (cove.Connector, error) {
	c, err := scanConnector(k.db.read.QueryRowContext(ctx, "SELECT "+connectorColumns+" FROM connectors c WHERE name = ?", name))
	if err == nil {
		c.Grants, err = k.grants(ctx, name)
	}
	if err != nil {
		return c, fmt.Errorf("connector %s: %w", name, notFound(err))
	}
	return c, nil
}

func (k *Connectors) grants(ctx context.Context, name string) ([]cove.ConnectorGrant, error) {
	return collect(ctx, k.db.read, func(row scanner) (cove.ConnectorGrant, error) {
		var g cove.ConnectorGrant
		var git []byte
		err := row.Scan(&g.Sprite, &g.Label, &g.Job, &git)
		return g, errors.Join(err, readGit(git, &g))
	}, "SELECT sprite, label, ifnull(job, ''), git FROM connector_grants WHERE connector = ? ORDER BY sprite, label, job", name)
}

// readGit reads the repository that a grant is limited to.
func readGit(doc []byte, g *cove.ConnectorGrant) error {
	if len(doc) == 0 {
		return nil
	}
	return json.Unmarshal(doc, &g.Git)
}

// List returns all connectors with their grants, by name.
func (k *Connectors) List(ctx context.Context) ([]cove.Connector, error) {
	list, err := collect(ctx, k.db.read, scanConnector, "SELECT "+connectorColumns+" FROM connectors c ORDER BY name")
	for i := range list {
		if err == nil {
			list[i].Grants, err = k.grants(ctx, list[i].Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list connectors: %w", err)
	}
	return list, nil
}

// Delete forgets a connector and its grants.
func (k *Connectors) Delete(ctx context.Context, name string) error {
	err := k.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM connectors WHERE name = ?", name))
	})
	if err != nil {
		return fmt.Errorf("delete connector %s: %w", name, err)
	}
	return nil
}

// UnnamedError refuses a grant to a label that sprites have which the grant does not name.
type UnnamedError struct {
	Label   string
	Sprites []string // all that have the label, and those that a job under way will make with it
	Unnamed []string // those of them that the grant does not name
}

func (e *UnnamedError) Error() string {
	return fmt.Sprintf("the label %s is on sprites that the grant does not name: %s", e.Label, strings.Join(e.Unnamed, ", "))
}

// Grant adds a grant, if it is not there. A connector, a sprite or a job that is not there is
// ErrNotFound. The grants of a sprite end with it, so that a later sprite of that name gets
// none. The grants of a job end with the job. Whoever may change a sprite may give it a label
// that has no grant. So a grant to a label names all sprites that have it (Reaches); else it
// is an UnnamedError.
func (k *Connectors) Grant(ctx context.Context, name string, g cove.ConnectorGrant) error {
	err := k.db.update(ctx, func(tx *sql.Tx) error {
		checks := map[string]string{"SELECT 1 FROM connectors WHERE name = ?": name}
		if g.Sprite != "" {
			checks["SELECT 1 FROM sprites WHERE name = ?"] = g.Sprite
		}
		if g.Job != "" {
			checks["SELECT 1 FROM jobs WHERE id = ?"] = g.Job
		}
		for query, arg := range checks {
			var one int
			if err := tx.QueryRowContext(ctx, query, arg).Scan(&one); err != nil {
				if errors.Is(err, sql.ErrNoRows) {
					err = fmt.Errorf("%s: %w", arg, ErrNotFound)
				}
				return err
			}
		}
		if err := checkReaches(ctx, tx, name, g); err != nil {
			return err
		}
		git := []byte{}
		if g.Git != (cove.GitGrant{}) {
			var err error
			if git, err = json.Marshal(g.Git); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO connector_grants (connector, sprite, label, job, git) VALUES (?, ?, ?, nullif(?, ''), ?) ON CONFLICT DO NOTHING", name, g.Sprite, g.Label, g.Job, string(git))
		return err
	})
	if err != nil {
		return fmt.Errorf("grant connector %s: %w", name, err)
	}
	return nil
}

// checkReaches is an UnnamedError for a new grant to a label that reaches sprites which it
// does not name.
func checkReaches(ctx context.Context, tx *sql.Tx, connector string, g cove.ConnectorGrant) error {
	if g.Label == "" {
		return nil
	}
	var granted bool
	if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM connector_grants WHERE connector = ? AND label = ?)", connector, g.Label).Scan(&granted); err != nil || granted {
		return err
	}
	all, err := collect(ctx, tx, func(row scanner) (name string, err error) {
		err = row.Scan(&name)
		return name, err
	}, `SELECT name FROM sprites s WHERE EXISTS (SELECT 1 FROM json_each(s.labels) l WHERE l.value = ?1)
		UNION SELECT e.place FROM environments e JOIN jobs j ON j.id = e.job WHERE ?1 = ?2 AND instr(e.place, '/') = 0
			AND j.state IN ('installing', 'queued')
		ORDER BY 1`, g.Label, JobLabel)
	if err != nil {
		return err
	}
	if unnamed := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(g.Reaches, name) }); len(unnamed) > 0 {
		return &UnnamedError{Label: g.Label, Sprites: all, Unnamed: unnamed}
	}
	return nil
}

// Revoke takes back the grants that are exactly as g. If there is none, that is not an
// error. Without a sprite and a label, it takes back all grants of a job.
func (k *Connectors) Revoke(ctx context.Context, name string, g cove.ConnectorGrant) error {
	err := k.db.update(ctx, func(tx *sql.Tx) error {
		where := "connector = ?1 AND ifnull(job, '') = ?2"
		if g.Sprite != "" || g.Label != "" || g.Job == "" {
			where += " AND sprite = ?3 AND label = ?4"
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM connector_grants WHERE "+where, name, g.Job, g.Sprite, g.Label)
		return err
	})
	if err != nil {
		return fmt.Errorf("revoke connector %s: %w", name, err)
	}
	return nil
}

// Granted returns the connectors that serve a sprite now, by name. Each has the grants that
// make it serve the sprite; only their Git is set. Grants of jobs that have ended do not
// count.
func (k *Connectors) Granted(ctx context.Context, sprite string) ([]cove.Connector, error) {
	type granted struct {
		cove.Connector
		by cove.ConnectorGrant
	}
	all, err := collect(ctx, k.db.read, func(row scanner) (g granted, err error) {
		var git []byte
		if g.Connector, err = scanConnector(beside{row, &git}); err == nil {
			err = readGit(git, &g.by)
		}
		return g, err
	}, `SELECT DISTINCT `+connectorColumns+`, g.git FROM connectors c JOIN connector_grants g ON g.connector = c.name
		WHERE (g.sprite = ?1 OR g.label <> '' AND EXISTS (SELECT 1 FROM sprites s, json_each(s.labels) l WHERE s.name = ?1 AND l.value = g.label))
			AND (g.job IS NULL OR EXISTS (SELECT 1 FROM jobs j WHERE j.id = g.job AND j.sprite = ?1 AND j.state IN ('installing', 'queued', 'preparing', 'running', 'waiting')))
		ORDER BY c.name`, sprite)
	if err != nil {
		return nil, fmt.Errorf("connectors of sprite %s: %w", sprite, err)
	}
	var list []cove.Connector
	for _, g := range all {
		if n := len(list); n == 0 || list[n-1].Name != g.Name {
			list = append(list, g.Connector)
		}
		last := &list[len(list)-1]
		last.Grants = append(last.Grants, g.by)
	}
	return list, nil
}

// beside scans one more column, the last one.
type beside struct {
	scanner
	last any
}

func (b beside) Scan(dest ...any) error { return b.scanner.Scan(append(dest, b.last)...) }

// Labelled reports whether some connector is granted to sprites with the label.
func (k *Connectors) Labelled(ctx context.Context, label string) (bool, error) {
	var n int
	err := k.db.read.QueryRowContext(ctx, "SELECT count(*) FROM connector_grants WHERE label = ?", label).Scan(&n)
	return n > 0 && label != "", err
}
