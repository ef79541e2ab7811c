package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// compressed is data as an archive has it.
func compressed(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zw, err := zstd.NewWriter(&out, zstd.WithWindowSize(maxWindow))
	if err == nil {
		_, err = zw.Write(data)
	}
	if err = errors.Join(err, zw.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// imageHeader is what stands before an image.
func imageHeader(size int) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: imageName, Mode: 0o644, Size: int64(size)}
}

// An archive has the image that was given, as a whole, before the disk; whoever takes it need not
// read it.
func TestImageInArchive(t *testing.T) {
	image := strings.Repeat("an image", 1<<17)
	var out bytes.Buffer
	if _, err := Write(t.Context(), &out, Header{Name: "paint", Created: time.Unix(1, 0)}, &Image{Bytes: int64(len(image)), Write: func(w io.Writer) error {
		_, err := io.WriteString(w, image)
		return err
	}}, nil); err != nil {
		t.Fatal(err)
	}
	for most := range map[int64]bool{0: true, 100: true, 1 << 30: true} {
		var got []byte
		_, err := Read(t.Context(), bytes.NewReader(out.Bytes()), Options{MaxSize: 64 << 20, Begin: func(h Header, in io.Reader) (_ Target, err error) {
			if h.Format != FormatWithImage || in == nil {
				t.Fatalf("the header is %+v", h)
			}
			got, err = io.ReadAll(io.LimitReader(in, most))
			return Target{}, err
		}})
		if err != nil || string(got) != image[:min(most, int64(len(image)))] {
			t.Errorf("%d bytes of the image: got %d, %v", most, len(got), err)
		}
	}
	for _, n := range []int{-1, 1} { // an image that is not as large as was said
		if _, err := Write(t.Context(), io.Discard, Header{}, &Image{Bytes: int64(len(image) + n), Write: func(w io.Writer) error {
			_, err := io.WriteString(w, image)
			return err
		}}, nil); err == nil {
			t.Errorf("%d bytes more than there are: no error", n)
		}
	}
}

// Anything that is not as it should be around an image is refused, and bounds count it.
func TestRefusesHostileImages(t *testing.T) {
	good := plainOf(t, FormatWithImage, imageHeader(5), "image", tar.Header{Typeflag: tar.TypeDir, Name: "disk/", Mode: 0o755})
	broken := bytes.Replace(good, []byte("image\x00"), []byte("imago\x00"), 1)
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"none of these":       {good, ""},
		"no image":            {plainOf(t, FormatWithImage, rootDir), "base.tar was expected"},
		"nothing":             {plainOf(t, FormatWithImage), "base.tar was expected"},
		"a link":              {plainOf(t, FormatWithImage, tar.Header{Typeflag: tar.TypeSymlink, Name: imageName, Linkname: "/etc/passwd"}), "base.tar was expected"},
		"in an archive of 1":  {plainOf(t, Format, imageHeader(5), "image"), "not in the folder disk"},
		"two":                 {plainOf(t, FormatWithImage, imageHeader(5), "image", imageHeader(5), "image"), "not in the folder disk"},
		"another content":     {broken, "do not match the digest"},
		"cut short":           {good[:len(good)/4], "cut short"},
		"too large":           {plainOf(t, FormatWithImage, imageHeader(64<<20), strings.Repeat("x", 64<<20)), "is larger than"},
		"of a format to come": {plainOf(t, FormatWithImage+1, imageHeader(5), "image"), "the format 3"},
	} {
		for _, whole := range []bool{true, false} {
			_, err := Read(t.Context(), bytes.NewReader(compressed(t, test.data)), Options{MaxSize: 64 << 20, Begin: func(_ Header, in io.Reader) (_ Target, err error) {
				if in != nil && whole {
					_, err = io.Copy(io.Discard, in)
				}
				return Target{Uppers: map[string]string{"": filepath.Join(t.TempDir(), "root", "upper")}, UserXattr: true}, err
			}})
			if test.want == "" {
				if err != nil {
					t.Errorf("%s, read as a whole: %v: %v", name, whole, err)
				}
				continue
			}
			if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Error(), test.want) {
				t.Errorf("%s, read as a whole: %v: got %v, want a refusal with %q", name, whole, err, test.want)
			}
		}
	}
}
