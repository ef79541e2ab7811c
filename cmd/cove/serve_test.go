package main

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/server/sprite"
)

// TestDefaultImageChecked: a text that can't be the name of an image is refused, also by
// --check.
func TestDefaultImageChecked(t *testing.T) {
	for name, good := range map[string]bool{"": true, "host": true, "debian:12": true, "sha256:" + strings.Repeat("a1", 32): true, "Bad Name": false, "a:b:c": false} {
		if err := checkSettings(serveOptions{image: name}, t.TempDir()); (err == nil) != good {
			t.Errorf("--default-image %q: %v", name, err)
		}
	}
}

// TestSuspendedReport: nothing is said to be on disk if nothing is.
func TestSuspendedReport(t *testing.T) {
	for _, tt := range []struct {
		asleep int
		awake  []string
		want   string
	}{
		{0, []string{"paint"}, "will be lost"},
		{2, nil, "is on disk"},
		{0, nil, "is on disk"},
	} {
		var log strings.Builder
		reportSuspended(slog.New(slog.NewTextHandler(&log, nil)), tt.asleep, tt.awake)
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, tt.want) {
			t.Errorf("%d asleep, %q awake: %s", tt.asleep, tt.awake, got)
		}
	}
}

func TestParseConnectors(t *testing.T) {
	env := func(name string) (string, bool) {
		if name == "KEY" {
			return "secret", true
		}
		return "", false
	}
	got, err := parseConnectors([]string{"api=https://example.org/v1", "local=http://127.0.0.1:8080"},
		[]string{"api=x-api-key: $KEY", "api=X-Other: a:b$$", "local=Authorization: Bearer ${KEY}"}, env)
	if err != nil {
		t.Fatal(err)
	}
	if h := got["api"].Header; got["api"].URL != "https://example.org/v1" || h.Get("X-Api-Key") != "secret" || h.Get("X-Other") != "a:b$" {
		t.Errorf("api: got %+v", got["api"])
	}
	if got["local"].Header.Get("Authorization") != "Bearer secret" {
		t.Errorf("local: got %+v", got["local"])
	}
	for name, test := range map[string]struct{ connector, header, want string }{
		"no name":          {"http://x", "", "NAME=URL"},
		"bad name":         {"A_B=http://x", "", "NAME=URL"},
		"no URL":           {"a=", "", "NAME=URL"},
		"another scheme":   {"a=file:///etc/passwd", "", "http or https"},
		"a query":          {"a=http://x/?k=v", "", "http or https"},
		"a password":       {"a=http://u:p@x", "", "--connector-header"},
		"no such":          {"a=http://x", "b=H: v", "--connector b=URL"},
		"no header":        {"a=http://x", "a=value", "HEADER: VALUE"},
		"a header's trick": {"a=http://x", "a=H\r\nX: v", "HEADER: VALUE"},
		"no value":         {"a=http://x", "a=H: ", "empty"},
		"not set":          {"a=http://x", "a=H: $MISSING", "MISSING"},
	} {
		var headers []string
		if test.header != "" {
			headers = []string{test.header}
		}
		if _, err := parseConnectors([]string{test.connector}, headers, env); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	if _, err := parseConnectors([]string{"a=http://x", "a=http://y"}, nil, env); err == nil {
		t.Error("twice is no error")
	}
}

// Another program may take the port of a killed server a moment after it was seen free. Then a
// server that a command starts listens elsewhere. A server with a given address does not.
func TestListenWhereItIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.Addr().String()
	dir := t.TempDir()
	logger := slog.New(slog.DiscardHandler)
	o := serveOptions{addr: datafolder.DefaultAddr, fallback: at}
	ln, err := o.listen(t.Context(), dir, logger)
	if err != nil {
		t.Fatalf("with %s taken: %v", at, err)
	}
	defer ln.Close()
	if ln.Addr().String() == at {
		t.Errorf("listens at %s, which is taken", at)
	}
	for name, o := range map[string]serveOptions{
		"given":          {addr: at, given: true, fallback: anyPort},
		"without a fall": {addr: at},
	} {
		if ln, err := o.listen(t.Context(), dir, logger); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: got %v, %v, want %v", name, ln, err, syscall.EADDRINUSE)
		}
	}
}

func TestParsePool(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a1", 32)
	for name, test := range map[string]struct {
		specs []string
		image string
		want  []sprite.PoolPart
	}{
		"none":              {nil, "", nil},
		"of the host base":  {[]string{"2"}, "", []sprite.PoolPart{{Image: "host", Size: 2}}},
		"of the default":    {[]string{"2"}, "debian:12", []sprite.PoolPart{{Image: "debian:12", Size: 2}}},
		"of several":        {[]string{"1", "host=2", digest + "=3", "a1a1a1a1a1a1=4"}, "debian:12", []sprite.PoolPart{{Image: "debian:12", Size: 1}, {Image: "host", Size: 2}, {Image: digest, Size: 3}, {Image: "a1a1a1a1a1a1", Size: 4}}},
		"zero is none":      {[]string{"0", "debian:12=0"}, "", nil},
		"as many as can be": {[]string{"60", "debian:12=40"}, "", []sprite.PoolPart{{Image: "host", Size: 60}, {Image: "debian:12", Size: 40}}},
	} {
		if got, err := parsePool(test.specs, test.image); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
	for name, test := range map[string]struct {
		specs []string
		image string
		want  string
	}{
		"no number":         {[]string{"debian:12"}, "", "IMAGE=N"},
		"nothing":           {[]string{""}, "", "IMAGE=N"},
		"negative":          {[]string{"-1"}, "", "0 to 100"},
		"too many":          {[]string{"101"}, "", "0 to 100"},
		"too many together": {[]string{"60", "debian:12=41"}, "", "101"},
		"beyond a number":   {[]string{"debian:12=99999999999999999999"}, "", "0 to 100"},
		"no image":          {[]string{"=2"}, "", "not the name of an image"},
		"a template":        {[]string{"paint@v1=2"}, "", "not the name of an image"},
		"a trick":           {[]string{"$(reboot)=2"}, "", "not the name of an image"},
		"twice":             {[]string{"1", "2"}, "", "twice"},
		"the default twice": {[]string{"1", "debian:12=2"}, "debian:12", "twice"},
	} {
		if _, err := parsePool(test.specs, test.image); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
