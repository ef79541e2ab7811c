package cove

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/cove-dev/cove/sprites"
)

// The phases of an ImageEvent of a push, and of a commit.
const (
	ImageUploading = "uploading"
	ImageComposing = "composing"
)

// ImageArchiveType is the media type of an archive of images.
const ImageArchiveType = "application/x-tar"

// ImageSave asks for images as one archive (POST /v1/images/save).
type ImageSave struct {
	Images []string `json:"images"`
}

// ImageTag gives an image one more name (POST /v1/images/tag).
type ImageTag struct {
	Image string `json:"image"`
	Name  string `json:"name"` // becomes this image's if another one has it
}

// ImagePush sends an image to its registry (POST /v1/images/push).
type ImagePush struct {
	Image string `json:"image"`
	To    string `json:"to,omitempty"` // a name with its registry; empty: Image
}

// ImageCommit makes an image of a sprite's disk (POST /v1/images/commit).
type ImageCommit struct {
	Sprite     string `json:"sprite"`
	Checkpoint string `json:"checkpoint,omitempty"` // empty: as it is now
	Name       string `json:"name"`
}

// Save asks for images as one archive, which docker load takes, and which is an OCI layout. The
// caller reads it to its end and closes it; an archive that is cut short ends with an error.
func (i Images) Save(ctx context.Context, names ...string) (io.ReadCloser, error) {
	resp, err := i.Client.Do(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "save"), JSON: ImageSave{names}})
	if err != nil {
		return nil, fmt.Errorf("save images: %w", err)
	}
	return resp.Body, nil
}

// Tag gives an image one more name.
func (i Images) Tag(ctx context.Context, image, name string) (Image, error) {
	var tagged Image
	if err := i.Client.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "tag"), JSON: ImageTag{image, name}}, &tagged); err != nil {
		return Image{}, fmt.Errorf("tag image %s: %w", image, err)
	}
	return tagged, nil
}

// Push has the server send an image to a registry, with the credentials of the server's account.
// each is as for Pull.
func (i Images) Push(ctx context.Context, push ImagePush, each func(ImageEvent)) (Image, error) {
	pushed, err := i.events(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "push"), JSON: push}, each)
	if err != nil {
		return Image{}, fmt.Errorf("push image %s: %w", push.Image, err)
	}
	return pushed, nil
}

// Commit makes an image of the disk of a sprite that starts from an image. Its memory is not in
// it. each is as for Pull.
func (i Images) Commit(ctx context.Context, commit ImageCommit, each func(ImageEvent)) (Image, error) {
	made, err := i.events(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "images", "commit"), JSON: commit}, each)
	if err != nil {
		return Image{}, fmt.Errorf("commit sprite %s: %w", commit.Sprite, err)
	}
	return made, nil
}
