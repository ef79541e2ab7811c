package tools

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// smallWebP is one pixel, lossless.
const smallWebP = "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA=="

func picture(t testing.TB, width, height int) (asPNG, asJPEG string) {
	t.Helper()
	img := image.NewPaletted(image.Rect(0, 0, width, height), color.Palette{color.RGBA{0x12, 0x34, 0x56, 0xff}})
	var p, j bytes.Buffer
	if err := errors.Join(png.Encode(&p, img), jpeg.Encode(&j, img, nil)); err != nil {
		t.Fatal(err)
	}
	return p.String(), j.String()
}

// TestReadImage: an image is one by its content, whatever its name is, and is whole.
func TestReadImage(t *testing.T) {
	s := serve(t, ReadOnly)
	asPNG, asJPEG := picture(t, 40, 30)
	asWebP, err := base64.StdEncoding.DecodeString(smallWebP)
	if err != nil {
		t.Fatal(err)
	}
	s.put("shot.txt", asPNG, "shot", asJPEG, "shot.png", string(asWebP), "text.png", "no image\n", "gif.png", "GIF89a\x01\x00\x01\x00\x00\x00\x00;")
	for name, want := range map[string]Image{
		"shot.txt": {"image/png", 40, 30, []byte(asPNG)},
		"shot":     {"image/jpeg", 40, 30, []byte(asJPEG)},
		"shot.png": {"image/webp", 1, 1, asWebP},
	} {
		r, err := s.try("Read", ReadInput{FilePath: name})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := r.Image()
		if got == nil || got.MIME != want.MIME || got.Width != want.Width || got.Height != want.Height || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("%s: got %.200v, want %.200v", name, got, want)
		}
		if text := r.Text(); !strings.Contains(text, name+" is an image: "+want.MIME) || !strings.Contains(text, hashBytes(want.Data)[:16]) {
			t.Errorf("%s: the model is told %q", name, text)
		}
	}
	for name, want := range map[string]string{"text.png": "no image", "gif.png": "is binary"} {
		if r, err := s.try("Read", ReadInput{FilePath: name}); err != nil || r.Image() != nil || !strings.Contains(r.Text(), want) {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

// TestReadNoImage: an image over a bound, or a broken one, is an error that says which, and the
// next call is answered.
func TestReadNoImage(t *testing.T) {
	s := serve(t, ReadOnly)
	asPNG, asJPEG := picture(t, 40, 30)
	wide, _ := picture(t, maxSide+1, 1)
	most, _ := picture(t, maxSide, 1)
	many, _ := picture(t, 5200, 5200)
	s.put("half.png", asPNG[:len(asPNG)-20], "half.jpg", asJPEG[:len(asJPEG)/2], "head.png", asPNG[:8], "wide.png", wide, "many.png", many,
		"large.png", asPNG+strings.Repeat("x", maxImage), "most.png", most, "full.png", asPNG+strings.Repeat("x", maxImage-len(asPNG)))
	for name, want := range map[string]struct{ code, text string }{
		"half.png":  {CodeFailed, "not a whole image"},
		"half.jpg":  {CodeFailed, "not a whole image"},
		"head.png":  {CodeFailed, "not a whole image"},
		"wide.png":  {CodeTooLarge, "8001 × 1 pixels"},
		"many.png":  {CodeTooLarge, "5200 × 5200 pixels"},
		"large.png": {CodeTooLarge, "at most 3932160"},
	} {
		_, err := s.try("Read", ReadInput{FilePath: name})
		if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != want.code || !strings.Contains(e.Message, want.text) || !strings.Contains(e.Message, name) {
			t.Errorf("%s: got %v, want %s with %q", name, err, want.code, want.text)
		}
	}
	for _, name := range []string{"most.png", "full.png"} {
		if r, err := s.try("Read", ReadInput{FilePath: name}); err != nil || r.Image() == nil {
			t.Errorf("%s: got %v, %v", name, r, err)
		}
	}
}

// TestHostileImage: the half outside passes on nothing as an image that does not begin as one.
func TestHostileImage(t *testing.T) {
	asPNG, _ := picture(t, 4, 3)
	for name, i := range map[string]Image{
		"another type":  {MIME: "image/jpeg", Data: []byte(asPNG)},
		"no such type":  {MIME: "text/html", Data: []byte("<script>")},
		"no type":       {Data: []byte("x")},
		"no image":      {MIME: "image/png", Data: []byte("x")},
		"nothing":       {MIME: "image/png"},
		"over the size": {MIME: "image/png", Data: append([]byte(asPNG), make([]byte, maxImage)...)},
	} {
		data, err := json.Marshal(ReadResult{Image: &i})
		if err != nil {
			t.Fatal(err)
		}
		r, err := newResult("Read", data)
		if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != CodeProtocol {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

// BenchmarkReadImage reads a screenshot of a large screen.
func BenchmarkReadImage(b *testing.B) {
	s := serve(b, ReadOnly)
	asPNG, _ := picture(b, 3840, 2160)
	if err := os.WriteFile(s.path("shot.png"), []byte(asPNG), 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.try("Read", ReadInput{FilePath: "shot.png"}); err != nil {
			b.Fatal(err)
		}
	}
}
