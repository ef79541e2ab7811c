package server

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// archiveRoutes gives sprites out as archives, and takes them in.
type archiveRoutes struct {
	host    *sprite.Host
	labels  *labelRights
	imports *quota
	log     *slog.Logger
}

// exportSprite answers with a sprite as an archive. It needs the verb write, as a
// checkpoint and a fork do, and read: all files of the sprite are in it.
func (g *archiveRoutes) exportSprite(w http.ResponseWriter, r *http.Request) error {
	if !principalOf(r).may(read) {
		return fail.New("forbidden", "the token does not have the verb read", "")
	}
	env, err := flag(r, "environment")
	if err != nil {
		return err
	}
	withBase, err := flag(r, "with_base")
	if err != nil {
		return err
	}
	if withBase && !principalOf(r).may(admin) {
		return fail.New("forbidden", "only a token with the verb admin may take an image out of the server", "leave --with-base out, or export it with another token")
	}
	out := &lateWriter{w: w, kind: sprites.ArchiveType}
	name := r.PathValue("name")
	_, err = g.host.Export(r.Context(), name, sprite.ExportOptions{Checkpoint: r.URL.Query().Get("checkpoint"), Environment: env, WithBase: withBase}, out)
	if err == nil || !out.begun {
		return err
	}
	g.log.Warn("an export broke off", "sprite", name, "err", err)
	panic(http.ErrAbortHandler) // the client sees that it is cut short
}

// lateWriter begins an answer with its first byte, so that an earlier error has its own
// status.
type lateWriter struct {
	w     http.ResponseWriter
	kind  string // of its content
	begun bool
}

func (l *lateWriter) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", l.kind)
	}
	return l.w.Write(p)
}

// importSprite makes a sprite of an archive, if the token reaches its name.
func (g *archiveRoutes) importSprite(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	o := sprite.ImportOptions{Name: q.Get("name"), Labels: q["label"]}
	if text := q.Get("max_size"); text != "" {
		var err error
		if o.MaxSize, err = strconv.ParseInt(text, 10, 64); err != nil || o.MaxSize <= 0 {
			return fail.New(sprite.CodeBadRequest, "max_size must be a number of bytes", "")
		}
	}
	var err error
	if o.Pull, err = flag(r, "pull"); err != nil {
		return err
	}
	o.MayBring = func() error {
		if principalOf(r).may(admin) {
			return nil
		}
		return fail.New("forbidden", "only a token with the verb admin may bring the server an image, and the sprite in the archive is based on one", "import it with such a token, or have somebody who has one get the image first: cove image pull --help")
	}
	_, labelled, err := g.labels.mayGive(r, "", o.Labels) // asked again when the archive has come
	if err != nil {
		return err
	}
	labelled()
	o.MayLabel = func() (func(), error) {
		_, labelled, err := g.labels.mayGive(r, "", o.Labels)
		return labelled, err
	}
	p := principalOf(r)
	o.Allow = func(name string) error {
		if !p.reaches(name) {
			return fail.New("forbidden", "the token does not reach a sprite of that name", "")
		}
		return nil
	}
	if o.Name != "" { // before anything is sent
		if err := o.Allow(o.Name); err != nil {
			return err
		}
	}
	if !p.owner {
		o.By = p.name
	}
	free, err := g.imports.add(p)
	if err != nil {
		return err
	}
	defer free()
	body := &patientBody{r: r.Body, rc: http.NewResponseController(w)}
	o.Interrupt = body.interrupt
	done, err := g.host.Import(r.Context(), body, o)
	interrupted, restErr := body.rest()
	if restErr != nil {
		return restErr
	}
	if body.err != nil && !interrupted && r.Context().Err() == nil {
		return fail.New(sprite.CodeBadRequest, "the archive did not arrive: "+body.err.Error(), "")
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, done)
	return nil
}

// maxImports bounds the imports at once. Each writes to the disk that all share.
const maxImports = 8

// archivePatience is for how long nothing of an archive may come.
const archivePatience = 10 * time.Minute

// patientBody is a body that may take long, as long as something comes.
type patientBody struct {
	r   io.Reader
	rc  *http.ResponseController
	err error

	mu   sync.Mutex
	over bool // nothing is to be read any more
	done bool // it has been read
}

func (b *patientBody) Read(p []byte) (int, error) {
	if err := b.wait(time.Now().Add(archivePatience)); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// wait has the next read wait until then, unless it was interrupted.
func (b *patientBody) wait(until time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return os.ErrDeadlineExceeded
	}
	return b.deadline(until)
}

func (b *patientBody) deadline(until time.Time) error {
	if err := b.rc.SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// interrupt ends the read that waits, and all that follow.
func (b *patientBody) interrupt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return
	}
	b.over = true
	_ = b.deadline(time.Unix(1, 0)) // one that can't be set was told before
}

// rest ends the patience, and reports whether it was interrupted.
func (b *patientBody) rest() (interrupted bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
	return b.over, b.deadline(time.Time{})
}
