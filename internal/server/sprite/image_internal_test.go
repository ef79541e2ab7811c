package sprite

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/sprites"
)

// TestPinned: a reference that somebody is told to pull is of one image, and harmless to type.
func TestPinned(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a1", 32)
	for ref, want := range map[string]string{
		"debian:12":                     "debian:12@" + digest,
		"reg.example:5000/x/y":          "reg.example:5000/x/y@" + digest,
		"debian:12@" + digest:           "debian:12@" + digest,
		"debian@sha256:" + digest[7:60]: digest,
		digest:                          digest,
		"":                              digest,
		"$(reboot)":                     digest,
		"-f":                            digest,
		"x\n":                           digest,
		strings.Repeat("long", 200):     digest,
	} {
		if got := pinned(ref, digest); got != want {
			t.Errorf("%q: got %s, want %s", ref, got, want)
		}
	}
}

// TestImageError: a start that fails because of the image says so, and others do not.
func TestImageError(t *testing.T) {
	over := store.Sprite{Name: "paint", Base: "sha256:" + strings.Repeat("0", 64), Config: sprites.Config{Image: "debian:12"}}
	host := over
	host.Base = base.Host
	for _, test := range []struct {
		row  store.Sprite
		err  error
		code string
	}{
		{over, fmt.Errorf("boot: %w", ErrNoImage), CodeImageNotFound},
		{over, fmt.Errorf("boot: %w", fail.New(CodeImageNotFound, "no", "")), CodeImageNotFound},
		{over, fmt.Errorf("boot: %w", base.ErrImage), CodeImageBad},
		{over, errors.New("boot"), ""},
		{host, ErrNoImage, ""},
	} {
		got := imageError(test.row, "it did not start", test.err)
		if got == nil && test.code == "" {
			continue
		}
		if got == nil || got.Code != test.code || !strings.HasPrefix(got.Message, "it did not start: ") {
			t.Errorf("%v: got %+v, want the code %q", test.err, got, test.code)
		}
		if got != nil && got.Code == CodeImageNotFound && !strings.Contains(got.Hint, "cove image import ") { // no registry may have it
			t.Errorf("%v: the hint is %q", test.err, got.Hint)
		}
	}
}
