package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/build"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// imageRoutes gets, describes and removes the images that disks start from.
type imageRoutes struct {
	images   *image.Store // nil: this server has none
	sprites  *store.Sprites
	host     *sprite.Host
	builder  *build.Builder // nil: there are no images
	image    string         // see Server.DefaultImage
	refusals refusals
}

// on is a handler for a server that has a store of images.
func (g *imageRoutes) on(h handlerFunc) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if g.images == nil {
			return fail.New("not_available", "this server has no store of images", "")
		}
		return h(w, r)
	}
}

func (g *imageRoutes) list(w http.ResponseWriter, r *http.Request) error {
	all, err := g.images.List(r.Context())
	if err != nil {
		return err
	}
	used, err := g.used(r.Context())
	if err != nil {
		return err
	}
	hidden, err := g.hidden(r.Context())
	if err != nil {
		return err
	}
	every, err := flag(r, "all")
	if err != nil {
		return err
	}
	list := cove.ImageList{Images: []cove.Image{}}
	if list.DiskBytes, err = image.DiskBytes(g.images); err != nil {
		return err
	}
	for _, one := range all {
		if by := reached(r, used[one.Digest]); every || len(one.Names) > 0 || len(by) > 0 || !hidden[one.Digest] {
			list.Images = append(list.Images, g.describe(one, by))
		}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (g *imageRoutes) get(w http.ResponseWriter, r *http.Request) error {
	one, err := g.images.Get(r.Context(), r.PathValue("image"))
	if err != nil {
		return err
	}
	used, err := g.used(r.Context())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, g.describe(one, reached(r, used[one.Digest])))
	return nil
}

func (g *imageRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	err := g.images.Remove(r.Context(), r.PathValue("image"), func(digest string) ([]string, error) {
		if sprite.InPool(g.host, digest) {
			return nil, fail.Newf("image_in_use", "restart the server without the image in its pool (--pool, or pool in serve.toml); see the pool: cove server status", "image %s is in use by the server's pool", r.PathValue("image"))
		}
		used, err := g.used(r.Context())
		return used[digest], err
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g *imageRoutes) prune(w http.ResponseWriter, r *http.Request) error {
	var which cove.ImagePruning
	if r.ContentLength != 0 {
		if err := readJSON(w, r, maxBody, &which); err != nil {
			return err
		}
	}
	used, err := g.used(r.Context())
	if err != nil {
		return err
	}
	unnamed, err := g.unnamed(r.Context())
	if err != nil {
		return err
	}
	stays, err := g.stays(r.Context())
	if err != nil {
		return err
	}
	done, err := g.pruned(r.Context(), which.DryRun, func(digest string, names []string) bool {
		return !which.All && len(names) > 0 || len(used[digest]) > 0 || unnamed[digest] || stays[digest] || sprite.InPool(g.host, digest)
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

func (g *imageRoutes) pull(w http.ResponseWriter, r *http.Request) error {
	var req cove.ImagePull
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Reference == "" {
		return fail.New(sprite.CodeBadRequest, "reference is missing", `such as {"reference":"debian:12"}`)
	}
	return g.tell(w, r, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
		return one(g.images.Pull(ctx, req.Reference, image.PullOptions{Progress: progress}))
	})
}

func (g *imageRoutes) importArchive(w http.ResponseWriter, r *http.Request) error {
	body := &patientBody{r: r.Body, rc: http.NewResponseController(w)}
	several, err := flag(r, "several")
	if err != nil {
		return err
	}
	err = g.tell(w, r, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
		if as := r.URL.Query().Get("name"); as != "" || !several {
			return one(g.images.Import(ctx, io.Reader(body), as, progress))
		}
		return image.ImportAll(ctx, g.images, io.Reader(body), progress)
	})
	if _, rest := body.rest(); err == nil {
		err = rest
	}
	return err
}

// used lists the sprites over each image, by its digest.
func (g *imageRoutes) used(ctx context.Context) (map[string][]string, error) {
	rows, err := g.sprites.List(ctx, store.SpriteFilter{Public: true})
	used := map[string][]string{}
	for _, row := range rows {
		used[row.Base] = append(used[row.Base], row.Name)
	}
	return used, err
}

// reached are the sprites that a request's token reaches.
func reached(r *http.Request, names []string) []string {
	p := principalOf(r)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !p.reaches(name) })
}

// describe describes an image, and who uses it.
func (g *imageRoutes) describe(i image.Image, usedBy []string) cove.Image {
	out := describeImage(i, usedBy)
	out.Pool = sprite.InPool(g.host, i.Digest)
	return out
}

func describeImage(i image.Image, usedBy []string) cove.Image {
	c := i.Config
	out := cove.Image{
		Digest: i.Digest, Names: append([]string{}, i.Names...), Bytes: i.Bytes, DiskBytes: i.DiskBytes, CreatedAt: i.Created, PulledAt: i.Pulled, UsedBy: append([]string{}, usedBy...),
		Layers: make([]cove.ImageLayer, len(i.Layers)),
		Config: cove.ImageConfig{
			OS: c.OS, Architecture: c.Architecture, Variant: c.Variant, User: c.User, Workdir: c.Workdir, Env: c.Env, Shell: c.Shell,
			Entrypoint: c.Entrypoint, Cmd: c.Cmd, Ports: c.Ports, StopSignal: c.StopSignal, Labels: c.Labels,
		},
	}
	for n, l := range i.Layers {
		out.Layers[n] = cove.ImageLayer{Digest: l.Digest, Bytes: l.Bytes, DiskBytes: l.DiskBytes, Files: l.Files, LeftOut: l.LeftOut}
	}
	return out
}

// The times between lines of progress (progressInterval), and between empty lines that keep
// the connection up (aliveInterval).
const (
	progressInterval = 250 * time.Millisecond
	aliveInterval    = 20 * time.Second
)

// one is the result of a function for tell that makes one image.
func one(i image.Image, err error) ([]image.Image, error) { return []image.Image{i}, err }

// tell answers with lines of f's progress, and a line of its end.
func (g *imageRoutes) tell(w http.ResponseWriter, r *http.Request, f func(context.Context, func(image.Progress)) ([]image.Image, error)) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	rest, err := answerWhileSent(g.refusals.ending, w, r) // an import is told of while it is sent
	if err != nil {
		return err
	}
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush() // it has gone: the end says so
	var lines progressLines
	stop := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() { lines.write(w, rc, stop) })
	all, err := func() ([]image.Image, error) {
		defer telling.Wait() // whatever becomes of f: w is of no use after this handler
		defer close(stop)
		return f(r.Context(), lines.set)
	}()
	end := cove.ImageEvent{Type: "complete"}
	if err != nil {
		status, described := g.refusals.describe(err)
		body, _ := described.(sprites.ErrorBody)
		if status == http.StatusInternalServerError { // a registry's faults are none of this server's
			g.refusals.log.Error("image", "path", r.URL.Path, "err", err)
		}
		end = cove.ImageEvent{Type: "error", Error: body.Message, Code: body.Code, Hint: body.Hint}
	} else {
		for _, one := range all {
			end.Images = append(end.Images, describeImage(one, nil))
		}
		end.Image = &end.Images[0]
	}
	_ = json.NewEncoder(w).Encode(end) // it has gone
	rest()
	return nil
}

// progressLines has the latest progress, for the goroutine that writes it. The zero value has
// none.
type progressLines struct {
	mu     sync.Mutex
	latest *image.Progress
}

func (l *progressLines) set(p image.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = &p
}

func (l *progressLines) take() *image.Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.latest
	l.latest = nil
	return p
}

// write writes lines until stop is closed.
func (l *progressLines) write(w io.Writer, rc *http.ResponseController, stop <-chan struct{}) {
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	wrote := time.Now()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		p := l.take()
		switch {
		case p != nil:
			_ = json.NewEncoder(w).Encode(cove.ImageEvent{
				Type: "progress", Phase: p.Phase, Layer: p.Layer, Bytes: p.Bytes, Total: p.Total, LayersDone: p.LayersDone, Layers: p.Layers,
			})
		case time.Since(wrote) > aliveInterval:
			_, _ = io.WriteString(w, "\n")
		default:
			continue
		}
		wrote = time.Now()
		_ = rc.Flush()
	}
}
