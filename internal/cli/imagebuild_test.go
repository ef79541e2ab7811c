package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// builds is a server that answers builds by events.
func builds(t *testing.T, events ...cove.ImageBuildEvent) (call func(args ...string) (out, errs string, exit int)) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for _, e := range events {
			_ = json.NewEncoder(w).Encode(e)
		}
	}))
	t.Cleanup(s.Close)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte("FROM scratch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		exit := Main(t.Context(), append([]string{"image", "build", dir, "--url", s.URL, "--token", "x"}, args...), Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		return out.String(), errs.String(), exit
	}
}

// TestBuildFails: the output of a failed command is always shown, and is in the error's JSON. So are
// the connections that the network rules refused to it.
func TestBuildFails(t *testing.T) {
	address := netip.MustParseAddr("203.0.113.80")
	build := builds(t,
		cove.ImageBuildEvent{Type: cove.BuildStep, Step: 1, Steps: 2, Stage: "0", Text: "RUN one"},
		cove.ImageBuildEvent{Type: cove.BuildOutput, Output: "of the first\n"},
		cove.ImageBuildEvent{Type: cove.BuildStep, Step: 2, Steps: 2, Stage: "0", Text: "RUN two"},
		cove.ImageBuildEvent{Type: cove.BuildOutput, Output: "10%\r50%\r100%\nlast words\n", Stderr: true},
		cove.ImageBuildEvent{Type: cove.BuildRefused, Refused: &sprites.NetworkEvent{Protocol: "tcp", Name: "deb.example.org", Address: &address, Port: 80, Hint: "allow it: --allow 203.0.113.80:80"}},
		cove.ImageBuildEvent{Type: cove.BuildError, Code: "build_failed", Error: "the command ended with exit code 7", Hint: "do so"},
	)
	const refused = "refused by the network rules: deb.example.org:80 (203.0.113.80); allow it: --allow 203.0.113.80:80"
	for _, flag := range []string{"-v", "-q", "--json"} {
		out, errs, exit := build(flag)
		if exit == 0 || strings.Count(errs, "  last words\n") != 1 || !strings.Contains(errs, "  100%\n") || strings.Count(errs, "  "+refused+"\n") != 1 {
			t.Errorf("%s: exit code %d: %s", flag, exit, errs)
		}
		if flag != "--json" {
			continue
		}
		var doc errorDocument
		if err := json.Unmarshal([]byte(out), &doc); err != nil || strings.Join(doc.Error.Output, "|") != "100%|last words|"+refused || doc.Error.Code != "build_failed" {
			t.Errorf("the JSON is %s (%v)", out, err)
		}
	}
}

// TestBuildSays: a build without a name announces none that the image may have of another build, and
// with --quiet only the digest is printed.
func TestBuildSays(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	build := builds(t,
		cove.ImageBuildEvent{Type: cove.BuildWarning, Text: "the Dockerfile has no ARG"},
		cove.ImageBuildEvent{Type: cove.BuildComplete, Image: &cove.Image{Digest: digest, Names: []string{"earlier:1", "new:1"}}},
	)
	if out, errs, exit := build(); exit != 0 || !strings.HasPrefix(out, "abababababab is built: ") || strings.Contains(out, "earlier") || !strings.Contains(errs, "warning: the Dockerfile has no ARG\n") {
		t.Errorf("without a name: %q, %q, %d", out, errs, exit)
	}
	if out, _, exit := build("-t", "new:1"); exit != 0 || !strings.HasPrefix(out, "new:1 is built: ") {
		t.Errorf("with a name: %q, %d", out, exit)
	}
	for _, args := range [][]string{{"-q"}, {"-q", "-t", "new:1"}} {
		if out, errs, exit := build(args...); exit != 0 || out != digest+"\n" || errs != "" {
			t.Errorf("%v: %q, %q, %d", args, out, errs, exit)
		}
	}
}

// TestBuildProgress: while a step runs, the line of progress says which one, and its own time.
func TestBuildProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errs bytes.Buffer
		inv := newInvocation(Streams{Err: &errs})
		p := inv.newProgress("sending the context", 0)
		o := buildOutput{inv: inv, progress: p}
		p.Add(14)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if !strings.Contains(errs.String(), "sending the context: 14 B") {
			t.Errorf("of the context: %q", errs.String())
		}
		errs.Reset()
		o.event(cove.ImageBuildEvent{Type: cove.BuildStep, Step: 2, Steps: 18, Stage: "0", Text: "RUN apt-get install -y " + strings.Repeat("a", 100)})
		time.Sleep(35 * time.Second)
		p.Close()
		if got := errs.String(); !strings.Contains(got, "\nstep 2/18 RUN apt-get install -y aaa") || !strings.HasSuffix(got, " …, 35s\n") || strings.Contains(got, "sending") {
			t.Errorf("of a step: %q", got)
		}
	})
}

// TestPrunedLines: removed images are told by name, then steps of builds, images without a
// name, and caches.
func TestPrunedLines(t *testing.T) {
	got := strings.Join(prunedLines(cove.ImagePruned{Images: make([]string, 9), Names: []string{"a:1", "a:2", "b:1"}, Named: 2, Steps: 6, CacheBytes: 1 << 20}), "|")
	if want := "the image a:1|the image a:2|the image b:1|6 steps of builds|1 image without a name|caches of builds, 1.0 MiB"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := prunedLines(cove.ImagePruned{}); len(got) != 0 {
		t.Errorf("of nothing: %q", got)
	}
}

// TestImagesOfNobody: on a data folder without a server, a command about images says how to get one.
func TestImagesOfNobody(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	var out, errs bytes.Buffer
	exit := Main(t.Context(), []string{"image", "list", "--data", t.TempDir()}, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	if exit == 0 || !strings.Contains(errs.String(), "there is nothing at") || !strings.Contains(errs.String(), "hint: get an image with: cove image pull ") {
		t.Errorf("exit code %d: %s%s", exit, &out, &errs)
	}
}

// TestImageNames: names that other tools have for a command lead to ours, and remove is rm.
func TestImageNames(t *testing.T) {
	for typed, want := range map[string]string{"load": "cove image import", "inspect": "cove image info", "history": "cove image info"} {
		var errs bytes.Buffer
		if exit := Main(t.Context(), []string{"image", typed, "x"}, Streams{In: strings.NewReader(""), Out: io.Discard, Err: &errs}); exit != exitUsage || !strings.Contains(errs.String(), "did you mean "+want+"?") {
			t.Errorf("%s: exit code %d: %s", typed, exit, &errs)
		}
	}
	if c, _, err := newRootCommand(newInvocation(Streams{})).Find([]string{"image", "remove"}); err != nil || c.Name() != "rm" {
		t.Errorf("remove is %v (%v)", c.Name(), err)
	}
}

// TestSaveJSON: --json of a save says which file has which images.
func TestSaveJSON(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "archive") }))
	t.Cleanup(s.Close)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	to := filepath.Join(t.TempDir(), "x.tar")
	var out, errs bytes.Buffer
	exit := Main(t.Context(), []string{"image", "save", "a:1", "b:1", "-o", to, "--json", "--url", s.URL, "--token", "x"}, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	var got savedImages
	if err := json.Unmarshal(out.Bytes(), &got); exit != 0 || err != nil || got.File != to || strings.Join(got.Images, " ") != "a:1 b:1" || got.Bytes != 7 {
		t.Errorf("exit code %d: %s%s (%v)", exit, &out, &errs, err)
	}
}
