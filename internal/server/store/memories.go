package store

import (
	"context"
	"database/sql"
	"fmt"
)

// A memory that is kept has a name; the one that a sprite sleeps with has the sprite's ID. The
// store knows those that checkpoints and sprites have. It also knows which ones are
// unreferenced: those that are being made and belong to nobody yet, and those of deleted
// checkpoints. A server that starts removes these. The store knows no others.

// MarkMemoryUnreferenced notes a memory that is about to be made. The next start may remove it,
// unless Commit or Create has given it to somebody by then.
func (t *Sprites) MarkMemoryUnreferenced(ctx context.Context, name string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error { return markMemoryUnreferenced(ctx, tx, name) })
	if err != nil {
		return fmt.Errorf("begin the memory %s: %w", name, err)
	}
	return nil
}

func markMemoryUnreferenced(ctx context.Context, tx *sql.Tx, name string) error {
	if name == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO doomed_memories VALUES (?)", name)
	return err
}

// reprieve undoes markMemoryUnreferenced, if that was called.
func reprieve(ctx context.Context, tx *sql.Tx, name string) error {
	if name == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, "DELETE FROM doomed_memories WHERE name = ?", name)
	return err
}

// Memories returns the names of the memories that checkpoints have kept, and of those that
// are unreferenced.
func (t *Sprites) Memories(ctx context.Context) (kept, unreferenced []string, err error) {
	kept, err = collect(ctx, t.db.read, scanText, "SELECT doc->>'$.memory' FROM checkpoints WHERE doc->>'$.memory' IS NOT NULL")
	if err == nil {
		unreferenced, err = collect(ctx, t.db.read, scanText, "SELECT name FROM doomed_memories")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list the memories: %w", err)
	}
	return kept, unreferenced, nil
}

// ForgetMemories forgets unreferenced memories, which are not there any more.
func (t *Sprites) ForgetMemories(ctx context.Context, names []string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		for _, name := range names {
			if err := reprieve(ctx, tx, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget memories: %w", err)
	}
	return nil
}
