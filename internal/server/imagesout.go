package server

import (
	"context"
	"io"
	"net/http"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/sprite"
)

// save answers with images as an archive.
func (g *imageRoutes) save(w http.ResponseWriter, r *http.Request) error {
	var req cove.ImageSave
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	out := &lateWriter{w: w, kind: cove.ImageArchiveType}
	err := g.images.Save(r.Context(), req.Images, out)
	if err == nil || !out.begun {
		return err
	}
	g.refusals.log.Warn("an archive of images broke off", "images", req.Images, "err", err)
	panic(http.ErrAbortHandler) // the client sees that it is cut short
}

// tag gives an image one more name.
func (g *imageRoutes) tag(w http.ResponseWriter, r *http.Request) error {
	var req cove.ImageTag
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	one, err := g.images.Tag(r.Context(), req.Image, req.Name)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, describeImage(one, nil))
	return nil
}

// push sends an image to its registry.
func (g *imageRoutes) push(w http.ResponseWriter, r *http.Request) error {
	var req cove.ImagePush
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	return g.tell(w, r, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
		if _, err := g.images.Push(ctx, req.Image, req.To, image.PushOptions{Progress: progress}); err != nil {
			return nil, err
		}
		return one(g.images.Get(ctx, req.Image))
	})
}

// commit makes an image of a sprite's disk.
func (g *imageRoutes) commit(w http.ResponseWriter, r *http.Request) error {
	var req cove.ImageCommit
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Sprite == "" {
		return fail.New(sprite.CodeBadRequest, "sprite is missing", `such as {"sprite":"paint","name":"tools:2"}`)
	}
	if err := image.CheckName(req.Name); err != nil { // before the sprite stands still for it
		return err
	}
	if !principalOf(r).reaches(req.Sprite) {
		return fail.New("forbidden", "the token does not reach this sprite", "")
	}
	return g.tell(w, r, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
		disk, err := sprite.OpenCommit(ctx, g.host, req.Sprite, req.Checkpoint)
		if err != nil {
			return nil, err
		}
		defer disk.Close()
		of := req.Sprite
		if req.Checkpoint != "" {
			of += "@" + req.Checkpoint
		}
		return one(g.images.Compose(ctx, image.Draft{
			Parent: disk.Base, Names: []string{req.Name}, History: "commit of sprite " + of,
			Layer: func(w io.Writer) error {
				return disk.WriteLayer(ctx, &progressWriter{w: w, tell: progress})
			},
		}))
	})
}

// progressWriter tells how much was written.
type progressWriter struct {
	w    io.Writer
	n    int64
	tell func(image.Progress)
}

func (p *progressWriter) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.n += int64(n)
	p.tell(image.Progress{Phase: image.Composing, Bytes: p.n})
	return n, err
}
