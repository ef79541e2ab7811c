package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Image is an OCI image that the server has.
type Image struct {
	Digest  string          // of its manifest: sha256:HEX
	Doc     json.RawMessage // the package image knows what is in it
	Names   []string        // sorted; none: it was named, and the name is another image's now
	Created time.Time       // zero: the image does not say
	Pulled  time.Time
}

// Images are the images that the server has, and their names.
type Images struct {
	db *database
	watchers
}

const imageColumns = `digest, doc, created_at, pulled_at, (SELECT json_group_array(n.name) FROM image_names n WHERE n.digest = images.digest)`

func scanImage(row scanner) (in Image, err error) {
	var doc, names []byte
	var created, pulled sql.NullInt64
	if err := row.Scan(&in.Digest, &doc, &created, &pulled, &names); err != nil {
		return in, err
	}
	in.Doc, in.Created, in.Pulled = doc, fromMicros(created), fromMicros(pulled)
	err = json.Unmarshal(names, &in.Names)
	slices.Sort(in.Names)
	return in, err
}

// Put stores an image in place of one of the same digest. Its names are added to those
// that it has. A name of another image becomes its own.
func (t *Images) Put(ctx context.Context, in Image) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO images (digest, doc, created_at, pulled_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (digest) DO UPDATE SET doc = excluded.doc, created_at = excluded.created_at, pulled_at = excluded.pulled_at`,
			in.Digest, string(in.Doc), micros(in.Created), micros(in.Pulled))
		for _, name := range in.Names {
			if err == nil {
				_, err = tx.ExecContext(ctx, "INSERT OR REPLACE INTO image_names (name, digest) VALUES (?, ?)", name, in.Digest)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("store image %s: %w", in.Digest, err)
	}
	t.notify()
	return nil
}

// Get returns the image of a digest; ErrNotFound if there is none.
func (t *Images) Get(ctx context.Context, digest string) (Image, error) {
	in, err := scanImage(t.db.read.QueryRowContext(ctx, "SELECT "+imageColumns+" FROM images WHERE digest = ?", digest))
	if err != nil {
		return in, fmt.Errorf("image %s: %w", digest, notFound(err))
	}
	return in, nil
}

// Named returns the image of a name; ErrNotFound if there is none.
func (t *Images) Named(ctx context.Context, name string) (Image, error) {
	in, err := scanImage(t.db.read.QueryRowContext(ctx, "SELECT "+imageColumns+" FROM images WHERE digest = (SELECT digest FROM image_names WHERE name = ?)", name))
	if err != nil {
		return in, fmt.Errorf("image %s: %w", name, notFound(err))
	}
	return in, nil
}

// List returns all images, the one that was pulled last first.
func (t *Images) List(ctx context.Context) ([]Image, error) {
	list, err := collect(ctx, t.db.read, scanImage, "SELECT "+imageColumns+" FROM images ORDER BY pulled_at DESC, digest")
	if err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	return list, nil
}

// Unname takes a name from the image that has it; ErrNotFound if none has.
func (t *Images) Unname(ctx context.Context, name string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM image_names WHERE name = ?", name))
	})
	if err != nil {
		return fmt.Errorf("take the name %s from its image: %w", name, err)
	}
	t.notify()
	return nil
}

// hasImage returns ErrNoImage if a base is an image that is not there.
func hasImage(ctx context.Context, tx *sql.Tx, base string) error {
	if !strings.HasPrefix(base, "sha256:") {
		return nil
	}
	var there bool
	err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM images WHERE digest = ?)", base).Scan(&there)
	if err == nil && !there {
		err = ErrNoImage
	}
	return err
}

// Delete forgets an image and its names; ErrNotFound if there is none, ErrInUse if a sprite's
// disk is over it.
func (t *Images) Delete(ctx context.Context, digest string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		var used bool
		if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sprites WHERE base = ?)", digest).Scan(&used); err != nil {
			return err
		}
		if used {
			return ErrInUse
		}
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM images WHERE digest = ?", digest))
	})
	if err != nil {
		return fmt.Errorf("delete image %s: %w", digest, err)
	}
	t.notify()
	return nil
}
