package cove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// Image describes an OCI image that a cove server has. The disks of sprites may start from
// it.
type Image struct {
	Digest    string       `json:"digest"` // of its manifest: sha256:HEX
	Names     []string     `json:"names"`  // none: each is another image's by now
	Config    ImageConfig  `json:"config"`
	Layers    []ImageLayer `json:"layers"`              // the lowest first
	Bytes     int64        `json:"bytes"`               // compressed, as the server has received it
	DiskBytes int64        `json:"disk_bytes"`          // extracted; layers may be other images', too
	CreatedAt time.Time    `json:"created_at,omitzero"` // zero: the image does not say
	PulledAt  time.Time    `json:"pulled_at"`
	UsedBy    []string     `json:"used_by"`        // sprites, of those that the token reaches
	Pool      bool         `json:"pool,omitempty"` // the server keeps sandboxes over it ready, and so it stays
}

// ImageConfig is an image's configuration of how to run its programs.
type ImageConfig struct {
	OS           string            `json:"os,omitempty"`
	Architecture string            `json:"architecture,omitempty"`
	Variant      string            `json:"variant,omitempty"`
	User         string            `json:"user,omitempty"`
	Workdir      string            `json:"workdir,omitempty"`
	Env          []string          `json:"env,omitempty"` // NAME=VALUE
	Shell        []string          `json:"shell,omitempty"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	Ports        []string          `json:"ports,omitempty"` // such as 80/tcp
	StopSignal   string            `json:"stop_signal,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
}

// HTTPPort is the TCP port that the image exposes, if it exposes exactly one; else 0.
func (c ImageConfig) HTTPPort() int {
	port := 0
	for _, text := range c.Ports {
		number, protocol, named := strings.Cut(text, "/")
		if named && protocol != "tcp" {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > math.MaxUint16 || port != 0 { // such as a range
			return 0
		}
		port = n
	}
	return port
}

// ImageLayer is a layer of an image.
type ImageLayer struct {
	Digest    string `json:"digest"` // of its blob
	Bytes     int64  `json:"bytes"`  // of its blob
	DiskBytes int64  `json:"disk_bytes"`
	Files     int64  `json:"files"`
	LeftOut   int64  `json:"left_out,omitempty"` // devices and sockets, which no sprite gets
}

// ImageList answers GET /v1/images.
type ImageList struct {
	Images    []Image `json:"images"`
	DiskBytes int64   `json:"disk_bytes"` // that all images take, received and extracted, each layer once; hidden ones too
}

// ImagePull asks for an image by its reference (POST /v1/images/pull).
type ImagePull struct {
	Reference string `json:"reference"` // such as debian:12, or NAME@sha256:HEX
}

// The phases of an ImageEvent, in their order.
const (
	ImageResolving   = "resolving"
	ImageDownloading = "downloading"
	ImageExtracting  = "extracting"
)

// ImageEvent is a line of the answer to a pull or an import. It says how far the call is.
// The last line has the image or an error.
type ImageEvent struct {
	Type string `json:"type"` // progress, complete or error

	Phase      string `json:"phase,omitempty"`
	Layer      string `json:"layer,omitempty"` // the digest of what is at hand
	Bytes      int64  `json:"bytes,omitempty"` // of it
	Total      int64  `json:"total,omitempty"` // 0: not known
	LayersDone int    `json:"layers_done,omitempty"`
	Layers     int    `json:"layers,omitempty"`

	Image  *Image  `json:"image,omitempty"`
	Images []Image `json:"images,omitempty"` // Image, and the others of an archive of several

	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// ImagePruning says which images a prune removes (POST /v1/images/prune). It always removes
// images without a name that no sprite uses, and the caches of builds.
type ImagePruning struct {
	All    bool `json:"all,omitempty"`     // images with a name, too, if no sprite uses them; never the server's default image
	DryRun bool `json:"dry_run,omitempty"` // remove nothing, only say what a prune would remove
}

// ImagePruned lists the images that a prune has removed, or would remove.
type ImagePruned struct {
	Images     []string `json:"images"`      // digests
	Names      []string `json:"names"`       // that these images had
	Named      int      `json:"named"`       // how many of Images these are
	Steps      int      `json:"steps"`       // how many of the others are steps of builds, which List leaves out
	Bytes      int64    `json:"bytes"`       // that are free again
	CacheBytes int64    `json:"cache_bytes"` // of Bytes, those of RUN --mount=type=cache
}

// Images are the images of a server. Client is required.
type Images struct{ Client *Client }

func imagePath(name string) string {
	return sprites.Path("v1", "images") + "/" + (&url.URL{Path: name}).EscapedPath()
}

// List describes all images, the one that was pulled last first. Steps of builds without a name are
// left out.
func (i Images) List(ctx context.Context) ([]Image, error) {
	list, err := i.ListAll(ctx, false)
	return list.Images, err
}

// ListAll is List with what all images take on the disk; if steps is true, it lists the steps of
// builds, too.
func (i Images) ListAll(ctx context.Context, steps bool) (ImageList, error) {
	list, query := ImageList{Images: []Image{}}, url.Values{}
	if steps {
		query.Set("all", "true")
	}
	if err := i.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "images"), Query: query, Retry: true}, &list); err != nil {
		return list, fmt.Errorf("list images: %w", err)
	}
	return list, nil
}

// Get describes one image, by a name as people write it, its digest, or 12 digits of that.
func (i Images) Get(ctx context.Context, name string) (Image, error) {
	var image Image
	if err := i.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: imagePath(name), Retry: true}, &image); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", name, err)
	}
	return image, nil
}

// Remove removes an image, or one of its names if it has several. An image that a sprite
// uses stays.
func (i Images) Remove(ctx context.Context, name string) error {
	if err := i.Client.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: imagePath(name)}, nil); err != nil {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	return nil
}

// Prune removes images that no sprite uses, and the caches of builds.
func (i Images) Prune(ctx context.Context, which ImagePruning) (ImagePruned, error) {
	pruned := ImagePruned{Images: []string{}, Names: []string{}}
	if err := i.Client.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "prune"), JSON: which}, &pruned); err != nil {
		return pruned, fmt.Errorf("prune images: %w", err)
	}
	return pruned, nil
}

// Pull has the server get an image from its registry, with the credentials of the server's
// account. If each is not nil, it gets each event but the last.
func (i Images) Pull(ctx context.Context, reference string, each func(ImageEvent)) (Image, error) {
	image, err := i.events(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "pull"), JSON: ImagePull{reference}}, each)
	if err != nil {
		return Image{}, fmt.Errorf("pull image %s: %w", reference, err)
	}
	return image, nil
}

// Import sends the server an archive: of docker save, of an OCI layout, or a tar of a root
// file system. That tar becomes an image of one layer. If name is not empty, it replaces
// the names in the archive. The function each is as for Pull.
func (i Images) Import(ctx context.Context, archive io.Reader, name string, each func(ImageEvent)) (Image, error) {
	query := url.Values{}
	if name != "" {
		query.Set("name", name)
	}
	image, err := i.events(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "import"), Query: query, Body: archive}, each)
	if err != nil {
		return Image{}, fmt.Errorf("import an image: %w", err)
	}
	return image, nil
}

// ImportAll is Import of all images of an archive, each by a name that it has there. There is one at
// least.
func (i Images) ImportAll(ctx context.Context, archive io.Reader, each func(ImageEvent)) ([]Image, error) {
	query := url.Values{"several": {"true"}}
	end, err := i.end(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "import"), Query: query, Body: archive}, each)
	if err != nil {
		return nil, fmt.Errorf("import images: %w", err)
	}
	if len(end.Images) == 0 { // an older server's
		return []Image{*end.Image}, nil
	}
	return end.Images, nil
}

func (i Images) events(ctx context.Context, r sprites.Request, each func(ImageEvent)) (Image, error) {
	end, err := i.end(ctx, r, each)
	if err != nil {
		return Image{}, err
	}
	return *end.Image, nil
}

// end returns the last event, which has an image.
func (i Images) end(ctx context.Context, r sprites.Request, each func(ImageEvent)) (ImageEvent, error) {
	for line, err := range i.Client.Lines(ctx, r) {
		if err != nil {
			return ImageEvent{}, err
		}
		var e ImageEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return e, fmt.Errorf("read an event: %w", err)
		}
		switch {
		case e.Type == "error":
			return e, &sprites.Error{ErrorBody: sprites.ErrorBody{Code: e.Code, Message: e.Error, Hint: e.Hint}}
		case e.Type == "complete" && e.Image != nil:
			return e, nil
		case each != nil:
			each(e)
		}
	}
	return ImageEvent{}, errors.New("the server's answer ended too soon")
}
