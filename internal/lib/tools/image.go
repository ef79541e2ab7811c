package tools

import (
	"bytes"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"net/http"

	"golang.org/x/image/webp"
)

// Bounds on an image that Read returns. The bytes and sides are the least that the APIs of
// models take; the pixels bound the memory that it takes to decode one.
const (
	maxImage  = 15 << 18 // bytes, which are 5 MiB in base64
	maxSide   = 8000     // pixels
	maxPixels = 24 << 20
)

// An Image is a file that a model is shown as a picture.
type Image struct {
	MIME   string `json:"mime"` // image/png, image/jpeg or image/webp
	Width  int    `json:"width"`
	Height int    `json:"height"`
	Data   []byte `json:"data"` // the file
}

// A codec reads images of one type.
type codec struct {
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
}

var codecs = map[string]codec{
	"image/png":  {png.DecodeConfig, png.Decode},
	"image/jpeg": {jpeg.DecodeConfig, jpeg.Decode},
	"image/webp": {webp.DecodeConfig, webp.Decode},
}

// imageType is the type of an image, by its first bytes; empty: it is not an image that can be
// shown.
func imageType(head []byte) string {
	mime := http.DetectContentType(head)
	if _, ok := codecs[mime]; !ok {
		return ""
	}
	return mime
}

// readImage reads an image of a type and size. It decodes all of it, because an API refuses
// the whole conversation if it gets a broken image.
func (w *workspace) readImage(shown, mime string, size int64, r io.Reader) (*Image, error) {
	if size > maxImage {
		return nil, errorf(CodeTooLarge, "%s is an image of %d bytes, and at most %d can be shown; make a smaller one, such as a JPEG or one with fewer pixels", shown, size, maxImage)
	}
	data, err := io.ReadAll(io.LimitReader(r, maxImage+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != size {
		return nil, errorf(CodeChanged, "%s is being written: it had %d bytes, and then others; Read it again", shown, size)
	}
	config, err := codecs[mime].config(bytes.NewReader(data))
	switch {
	case err != nil:
	case config.Width > maxSide || config.Height > maxSide || config.Width*config.Height > maxPixels:
		return nil, errorf(CodeTooLarge, "%s is an image of %d × %d pixels, and at most %d a side and %d in all can be shown; make a smaller one, or cut out a part",
			shown, config.Width, config.Height, maxSide, maxPixels)
	default:
		w.decoding.Lock()
		defer w.decoding.Unlock()
		_, err = codecs[mime].decode(bytes.NewReader(data))
	}
	if err != nil {
		return nil, errorf(CodeFailed, "%s begins as %s, but is not a whole image: %v", shown, mime, err)
	}
	return &Image{MIME: mime, Width: config.Width, Height: config.Height, Data: data}, nil
}

// check refuses images that no honest sprite answers with. It does not decode the data.
func (i *Image) check() error {
	if i != nil && (len(i.Data) > maxImage || imageType(i.Data) != i.MIME || i.MIME == "") {
		return errorf(CodeProtocol, "an image of %d bytes is none of the type %.40q", len(i.Data), i.MIME)
	}
	return nil
}
