package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/jsonbody"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// build makes an image of a Dockerfile. The first line of the body says what is wanted, the rest
// is the context.
func (g *imageRoutes) build(w http.ResponseWriter, r *http.Request) error {
	body := &patientBody{r: r.Body, rc: http.NewResponseController(w)}
	in := bufio.NewReaderSize(endedBody{body}, 64<<10)
	head, err := readHead(in)
	if err != nil {
		return err
	}
	var req cove.ImageBuild
	if err := jsonbody.Decode(head, &req); err != nil {
		return fail.Newf(sprite.CodeBadRequest, "", "the first line is not a build: %v", err)
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	rest, err := answerWhileSent(g.refusals.ending, w, r) // the build is told of while its context is sent
	if err != nil {
		return err
	}
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush() // it has gone: the end says so
	lines := &buildLines{w: w, rc: rc}
	stop := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() { lines.keepUp(stop) })
	one, err := func() (image.Image, error) {
		defer telling.Wait() // whatever becomes of the build: w is of no use after this handler
		defer close(stop)
		return g.builder.Build(r.Context(), req, in, lines.tell)
	}()
	end := cove.ImageBuildEvent{Type: cove.BuildComplete}
	if err != nil {
		status, described := g.refusals.describe(err)
		body, _ := described.(sprites.ErrorBody)
		if status == http.StatusInternalServerError && r.Context().Err() == nil {
			g.refusals.log.Error("build of an image", "err", err)
		}
		end = cove.ImageBuildEvent{Type: cove.BuildError, Error: body.Message, Code: body.Code, Hint: body.Hint}
	} else {
		image := describeImage(one, nil)
		end.Image = &image
	}
	lines.tell(end)
	rest()
	return nil
}

// endedBody is a body that is waited for until its end, and no longer: after that the server
// looks whether the client is there.
type endedBody struct{ *patientBody }

func (b endedBody) Read(p []byte) (int, error) {
	n, err := b.patientBody.Read(p)
	if err != nil {
		_, _ = b.rest()
	}
	return n, err
}

// readHead reads the first line of a build's body.
func readHead(in *bufio.Reader) ([]byte, error) {
	var head bytes.Buffer
	for {
		part, err := in.ReadSlice('\n')
		head.Write(part)
		switch {
		case head.Len() > cove.MaxImageBuild:
			return nil, fail.Newf("too_large", "", "the first line of a build has more than %d bytes", cove.MaxImageBuild)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, fail.Newf(sprite.CodeBadRequest, "", "the body ended too soon: %v", err)
		}
		return head.Bytes(), nil
	}
}

// buildLines writes the events of a build.
type buildLines struct {
	mu    sync.Mutex
	w     io.Writer
	rc    *http.ResponseController
	wrote time.Time
	asked time.Time // when a pull was told of last
}

func (l *buildLines) tell(e cove.ImageBuildEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); e.Type == cove.BuildPulling {
		if now.Sub(l.asked) < progressInterval {
			return
		}
		l.asked = now
	}
	_ = json.NewEncoder(l.w).Encode(e) // it has gone: so has the request's context
	_ = l.rc.Flush()
	l.wrote = time.Now()
}

// keepUp writes an empty line now and then, until stop is closed.
func (l *buildLines) keepUp(stop <-chan struct{}) {
	tick := time.NewTicker(aliveInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		l.mu.Lock()
		if time.Since(l.wrote) > aliveInterval/2 {
			_, _ = io.WriteString(l.w, "\n")
			_ = l.rc.Flush()
		}
		l.mu.Unlock()
	}
}

// unnamed are the images without a name, if anything is being built: they may be steps of that.
func (g *imageRoutes) unnamed(ctx context.Context) (map[string]bool, error) {
	all := map[string]bool{}
	if !g.builder.Busy() {
		return all, nil
	}
	list, err := g.images.List(ctx)
	for _, one := range list {
		all[one.Digest] = len(one.Names) == 0
	}
	return all, err
}

// hidden are the images without a name that builds have made on their way.
func (g *imageRoutes) hidden(ctx context.Context) (map[string]bool, error) {
	steps, err := g.builder.Steps.List(ctx)
	all := make(map[string]bool, len(steps))
	for _, s := range steps {
		all[s.Image] = true
	}
	return all, err
}
