package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// spriteRoutes makes sprites, and describes, changes, stops, wakes and deletes each.
type spriteRoutes struct {
	host     *sprite.Host
	image    string      // see Server.DefaultImage
	jobs     *store.Jobs // those that end with a sandbox are told why
	labels   *labelRights
	confined *confines
	rights   *rights // those of a URL's visitors end when it is public no more
}

// createBody also has fields that clients of the protocol send, and that have no effect
// (section 2.2).
type createBody struct {
	sprites.CreateRequest
	Config          lenientConfig   `json:"config"`
	Runtime         json.RawMessage `json:"runtime"`
	WaitForCapacity json.RawMessage `json:"wait_for_capacity"`
}

// lenientConfig is a machine without its unknown fields: some clients name them otherwise, as
// in "ramMB".
type lenientConfig struct{ *sprites.Config }

func (c *lenientConfig) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &c.Config) }

func (g *spriteRoutes) create(w http.ResponseWriter, r *http.Request) error {
	var body createBody
	if err := readJSON(w, r, maxBody, &body); err != nil {
		return err
	}
	req := body.CreateRequest
	req.Config = body.Config.Config
	p := principalOf(r)
	if !p.reaches(req.Name) {
		return fail.New("forbidden", "the token does not reach a sprite of that name", "")
	}
	if !p.may(admin) && (len(req.Include) > 0 || req.Owner != "" || req.LeaseSeconds != 0 || req.Install != "") {
		return fail.New("forbidden", "only a token with the verb admin may show the host's folders to a sprite, give it an owner, or say what its disk begins with", "")
	}
	_, labelled, err := g.labels.mayGive(r, "", req.Labels)
	if err != nil {
		return err
	}
	defer labelled()
	if err := mayOpen(r, g.host, req.Name, req.NetworkPolicy); err != nil {
		return err
	}
	chosen := req.Base != "" || req.Config != nil && req.Config.Image != ""
	if req.Base == "" {
		req.Config = withImage(req.Config, g.image)
	}
	info, err := g.host.Create(r.Context(), req)
	if err != nil && !chosen {
		err = noDefault(err, g.image)
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, info)
	return nil
}

// noDefault makes an error about a missing image say that it is the server's default image.
func noDefault(err error, image string) error {
	if e, ok := errors.AsType[*fail.Error](err); ok && image != "" && e.Code == sprite.CodeImageNotFound {
		return fail.Newf(e.Code, DefaultImageHint(image)+"; without it: cove create NAME --image host", "the server's default image %s is not here", image)
	}
	return err
}

// DefaultImageHint says how to have a default image that is not here.
func DefaultImageHint(image string) string {
	return "from its registry: cove image pull " + image + "; of a Dockerfile: cove image build -t " + image + " FOLDER"
}

// withImage is a new sprite's machine, with the server's default image if it names none.
func withImage(config *sprites.Config, image string) *sprites.Config {
	if image == "" || config != nil && config.Image != "" {
		return config
	}
	var c sprites.Config
	if config != nil {
		c = *config
	}
	c.Image = image
	return &c
}

func (g *spriteRoutes) get(w http.ResponseWriter, r *http.Request) error {
	info, err := g.host.Describe(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	w.Header().Set("ETag", info.Revision)
	writeJSON(w, http.StatusOK, info)
	return nil
}

// stats answers with a sprite's measurements. It does not wake the sprite.
func (g *spriteRoutes) stats(w http.ResponseWriter, r *http.Request) error {
	stats, err := sprite.Stats(r.Context(), g.host, r.PathValue("name"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, stats)
	return nil
}

// update changes a sprite: the one of the revision in If-Match, if that is given.
func (g *spriteRoutes) update(w http.ResponseWriter, r *http.Request) error {
	var req sprites.UpdateRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Revision = r.Header.Get("If-Match"); req.Revision == "*" {
		req.Revision = ""
	}
	judged, err := g.confined.mayGrow(r, r.PathValue("name"), req)
	if err != nil {
		return err
	}
	if req.Labels != nil {
		kept, labelled, err := g.labels.mayGive(r, r.PathValue("name"), *req.Labels)
		if err != nil {
			return err
		}
		defer labelled()
		if req.Revision = cmp.Or(req.Revision, kept); kept != "" && req.Revision != kept {
			return fail.Newf(sprite.CodeSpriteChanged, "read it again, and make the change again", "sprite %s has been changed since it was read", r.PathValue("name"))
		}
	}
	info, err := g.host.Update(judged, r.PathValue("name"), req)
	if err != nil {
		return err
	}
	if !isPublic(info) {
		g.rights.end(everybody(info).name)
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

func (g *spriteRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	if err := g.host.Delete(r.Context(), r.PathValue("name"), force); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// restart ends a sprite's sandbox, with all that runs in it; the next use
// starts another from the same disk.
func (g *spriteRoutes) restart(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if err := g.stopFor(r.Context(), name, "its sprite "+name+" was restarted"); err != nil {
		return err
	}
	machine, err := g.host.MachineID(r.Context(), name)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, sprites.RestartResult{
		SpriteName: name, MachineID: machine, Message: "stopped; its next use starts it",
	})
	return nil
}

// upgrade does the same, for another reason: a sandbox keeps the programs
// that it was started with, and the next one gets this server's.
func (g *spriteRoutes) upgrade(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if err := g.stopFor(r.Context(), name, "its sprite "+name+" was upgraded"); err != nil {
		return err
	}
	return g.get(w, r)
}

// stopFor ends a sprite's sandbox. The jobs that end with it say why.
func (g *spriteRoutes) stopFor(ctx context.Context, name, why string) error {
	jobs, err := g.jobs.List(ctx, store.JobFilter{Sprite: name, States: []cove.JobState{cove.JobPreparing, cove.JobRunning, cove.JobWaiting}})
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	note := func(to string) (errs error) {
		for _, job := range jobs {
			if job.Stopping { // somebody has asked for that
				continue
			}
			err := g.jobs.Update(ctx, job.ID, func(j *cove.Job) error {
				if !j.State.Terminal() {
					j.StopReason = to
				}
				return nil
			})
			if !errors.Is(err, store.ErrNotFound) {
				errs = errors.Join(errs, err)
			}
		}
		return errs
	}
	if err := note(why); err != nil {
		return err
	}
	if err := g.host.Stop(ctx, name); err != nil {
		return errors.Join(err, note(""))
	}
	return nil
}

// suspend has a sprite sleep now, as it would when nobody uses it.
func (g *spriteRoutes) suspend(w http.ResponseWriter, r *http.Request) error {
	if err := g.host.Suspend(r.Context(), r.PathValue("name")); err != nil {
		return err
	}
	return g.get(w, r)
}

// wake wakes a sprite, and answers once it is awake.
func (g *spriteRoutes) wake(w http.ResponseWriter, r *http.Request) error {
	lease, err := g.host.Use(r.Context(), r.PathValue("name"), "wake")
	if err != nil {
		return err
	}
	defer lease.Release()
	return g.get(w, r)
}

// fork makes copies of a sprite, if the caller reaches all names.
func (g *spriteRoutes) fork(w http.ResponseWriter, r *http.Request) error {
	var req sprites.ForkRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	p := principalOf(r)
	names := slices.Clone(req.Names)
	if req.Name != "" || len(names) == 0 { // both count
		names = append(names, req.Name)
	}
	for _, name := range names {
		if !p.reaches(name) {
			return fail.New("forbidden", "the token does not reach a sprite of that name", "")
		}
	}
	if !p.may(admin) && req.Owner != "" {
		return fail.New("forbidden", "only a token with the verb admin may give a sprite an owner", "")
	}
	judged, err := g.confined.mayCopy(r, r.PathValue("name"))
	if err != nil {
		return err
	}
	_, labelled, err := g.labels.mayGive(r, "", req.Labels)
	if err != nil {
		return err
	}
	defer labelled()
	infos, err := g.host.Fork(judged, r.PathValue("name"), req, p.may(admin))
	switch {
	case err != nil:
		return err
	case len(req.Names) > 0:
		writeJSON(w, http.StatusCreated, sprites.ListResponse{Sprites: infos})
	default:
		writeJSON(w, http.StatusCreated, infos[0])
	}
	return nil
}
