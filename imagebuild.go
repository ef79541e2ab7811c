package cove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/cove-dev/cove/sprites"
)

// MaxImageBuild bounds, in bytes, an ImageBuild as JSON.
const MaxImageBuild = 8 << 20

// ImageBuild asks for an image that a Dockerfile describes. It is the first line of the body of
// POST /v1/images/build. The build's context follows, as a tar.
type ImageBuild struct {
	Dockerfile string            `json:"dockerfile"`        // its text
	File       string            `json:"file,omitempty"`    // what errors call it; empty: Dockerfile
	Names      []string          `json:"names,omitempty"`   // that the image gets, such as app:1
	Target     string            `json:"target,omitempty"`  // a stage; empty: the last one
	Args       map[string]string `json:"args,omitempty"`    // of ARG
	Secrets    map[string][]byte `json:"secrets,omitempty"` // by id, for RUN --mount=type=secret; they are kept nowhere

	NoCache bool `json:"no_cache,omitempty"` // do every step again
	Pull    bool `json:"pull,omitempty"`     // ask the registries again which images the names in FROM are

	NetworkPolicy *sprites.NetworkPolicy `json:"network_policy,omitempty"` // of what RUN runs; nil: no rules
	CPUs          int                    `json:"cpus,omitempty"`           // a limit of each RUN; 0: none
	RAMMB         int                    `json:"ram_mb,omitempty"`         // likewise
}

// The types of an ImageBuildEvent.
const (
	BuildPulling  = "pulling"  // an image of a FROM is on its way
	BuildWarning  = "warning"  // Text says what is odd
	BuildStep     = "step"     // a step begins, or Cached is true
	BuildOutput   = "output"   // of the RUN that was told of last
	BuildRefused  = "refused"  // the network rules refused something to a RUN that failed
	BuildComplete = "complete" // the last event: the image is there
	BuildError    = "error"    // the last event: it is not
)

// ImageBuildEvent is a line of the answer to a build.
type ImageBuildEvent struct {
	Type string `json:"type"`

	Step   int    `json:"step,omitempty"` // from 1 on
	Steps  int    `json:"steps,omitempty"`
	Stage  string `json:"stage,omitempty"` // its name, or number
	Line   int    `json:"line,omitempty"`  // of the Dockerfile
	Text   string `json:"text,omitempty"`  // the instruction; of BuildPulling, the image
	Cached bool   `json:"cached,omitempty"`

	Output string `json:"output,omitempty"` // lines of text
	Stderr bool   `json:"stderr,omitempty"` // the command wrote them to its standard error

	Pull *ImageEvent `json:"pull,omitempty"` // of BuildPulling

	Refused *sprites.NetworkEvent `json:"refused,omitempty"` // of BuildRefused; Hint is for the person who builds

	Image *Image `json:"image,omitempty"` // of BuildComplete

	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// Build has the server build an image. The reader tar is the build's context; nil: it has
// no files. If each is not nil, it gets each event but the last. If ctx ends, so does the
// build.
func (i Images) Build(ctx context.Context, req ImageBuild, tar io.Reader, each func(ImageBuildEvent)) (Image, error) {
	head, err := json.Marshal(req)
	if err != nil {
		return Image{}, err
	}
	if tar == nil {
		tar = bytes.NewReader(nil)
	}
	body := io.MultiReader(bytes.NewReader(append(head, '\n')), tar)
	image, err := i.buildEvents(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "build"), Body: body}, each)
	if err != nil {
		return Image{}, fmt.Errorf("build an image: %w", err)
	}
	return image, nil
}

func (i Images) buildEvents(ctx context.Context, r sprites.Request, each func(ImageBuildEvent)) (Image, error) {
	for line, err := range i.Client.Lines(ctx, r) {
		if err != nil {
			return Image{}, err
		}
		var e ImageBuildEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return Image{}, fmt.Errorf("read an event: %w", err)
		}
		switch {
		case e.Type == BuildError:
			return Image{}, &sprites.Error{ErrorBody: sprites.ErrorBody{Code: e.Code, Message: e.Error, Hint: e.Hint}}
		case e.Type == BuildComplete && e.Image != nil:
			return *e.Image, nil
		case each != nil:
			each(e)
		}
	}
	return Image{}, errors.New("the server's answer ended too soon")
}
