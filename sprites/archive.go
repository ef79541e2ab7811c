package sprites

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// ArchiveType is the media type of an exported sprite.
const ArchiveType = "application/vnd.cove.sprite.tar+zstd"

// Imported says what has become of an archive on a cove server.
type Imported struct {
	Sprite   Info     `json:"sprite"`
	SameBase bool     `json:"same_base"` // it lies on the base that it was made over
	Members  int64    `json:"members"`   // files, folders and the like
	Bytes    int64    `json:"bytes"`     // of their contents
	Notes    []string `json:"notes"`     // for people: what was not taken over, and why
}

// ExportOptions say what of a sprite is exported. The zero value is what it is now,
// without the values of its environment, which may be secrets.
type ExportOptions struct {
	Checkpoint  string
	Environment bool
	WithBase    bool // the image that its disk is over, too, which needs the verb admin
}

// Export returns a sprite of a cove server as an archive, to be read to its end and
// closed. One that breaks off is an error of Read, and no archive.
func (s *Sprite) Export(ctx context.Context, o ExportOptions) (io.ReadCloser, error) {
	query := url.Values{}
	if o.Checkpoint != "" {
		query.Set("checkpoint", o.Checkpoint)
	}
	if o.Environment {
		query.Set("environment", "true")
	}
	if o.WithBase {
		query.Set("with_base", "true")
	}
	resp, err := s.client.Do(ctx, Request{Method: http.MethodGet, Path: s.path("export"), Query: query})
	if err != nil {
		return nil, fmt.Errorf("export sprite %s: %w", s.name, err)
	}
	return resp.Body, nil
}

// ImportOptions say what becomes of an archive.
type ImportOptions struct {
	Name    string   // empty: the one in the archive
	Labels  []string // those in the archive don't count
	MaxSize int64    // of what is unpacked; 0: most of what is free on the server's disk
	Pull    bool     // get the image that it is over, if that is not there, from the registry that the archive names
}

// Import makes a sprite of an archive, on a cove server. It is there once the whole
// archive has been found sound, or not at all.
func (c *Client) Import(ctx context.Context, archive io.Reader, o ImportOptions) (Imported, error) {
	query := url.Values{}
	if o.Name != "" {
		query.Set("name", o.Name)
	}
	for _, l := range o.Labels {
		query.Add("label", l)
	}
	if o.MaxSize > 0 {
		query.Set("max_size", strconv.FormatInt(o.MaxSize, 10))
	}
	if o.Pull {
		query.Set("pull", "true")
	}
	var done Imported
	err := c.Call(ctx, Request{Method: http.MethodPost, Path: Path("v1", "sprites", "import"), Query: query, Body: archive}, &done)
	if err != nil {
		return done, fmt.Errorf("import a sprite: %w", err)
	}
	return done, nil
}
