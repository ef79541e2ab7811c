package image

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fault"
)

// killChild is set, to the folder of its store, in the process that TestKilled runs
// itself in again. Variables with longer names have the image's name and the file of the
// registry's certificate.
const killChild = "COVE_TEST_KILL_CHILD"

// killAt starts a process, and kills it when it has reached the point that makes a file.
func killAt(t *testing.T, child *exec.Cmd, reached string) {
	t.Helper()
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	must(t, child.Start())
	for deadline := time.Now().Add(10 * time.Minute); ; {
		if _, err := os.Stat(reached); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("the child did not make %s", filepath.Base(reached))
			break
		}
		<-time.After(time.Millisecond)
	}
	must(t, child.Process.Kill())
	_ = child.Wait() // it was killed
	if t.Failed() {
		t.Fatal(out.String())
	}
}

// TestKilled: a process that is killed at any point of a pull leaves nothing half used. The
// next one has the image, or pulls it, and downloads only what had not come.
func TestKilled(t *testing.T) {
	if dir := os.Getenv(killChild); dir != "" {
		text, err := os.ReadFile(os.Getenv(killChild + "_CERT"))
		must(t, err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		s := storeIn(t, dir, nil, func(o *Options) { o.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}} })
		_, err = s.Pull(t.Context(), os.Getenv(killChild+"_REF"), PullOptions{}) // it is stopped in here
		t.Fatal("the point was not reached", err)
	}
	r := newRegistry(t)
	image := imageOf(t, layerOf(t, file("a", "1"), file("d/b", "1")), layerOf(t, file("d/.wh.b", ""), file("c", "2")))
	ref := r.push(t, "x:tag", image)
	cert := filepath.Join(t.TempDir(), "cert.pem")
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw}), 0o600))
	for _, point := range fault.ImagePoints {
		t.Run(string(point), func(t *testing.T) {
			dir := t.TempDir()
			child := exec.Command(os.Args[0], "-test.run=^TestKilled$")
			reached := filepath.Join(dir, "reached")
			child.Env = append(os.Environ(), killChild+"="+dir, killChild+"_REF="+ref, killChild+"_CERT="+cert, fault.Variable+"="+string(point)+"="+reached)
			killAt(t, child, reached)

			s := storeIn(t, dir, r)
			if left := namesIn(t, s, stagingFolder); len(left) > 0 {
				t.Errorf("staged: %q", left)
			}
			s.removing.Wait()
			if _, err := os.Lstat(s.path(leftFolder)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left by the process that was killed: %v", err)
			}
			blobs := namesIn(t, s, blobFolder)
			for _, path := range blobs {
				data, err := os.ReadFile(s.path(path))
				if err != nil || newDocument(data).digest.Hex != filepath.Base(path) {
					t.Errorf("%s is not what its name says, %v", path, err)
				}
			}
			for _, path := range namesIn(t, s, layerFolder) {
				if _, err := s.readNote(filepath.Base(path)); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
			list, err := s.List(t.Context())
			if err != nil || (len(list) == 1) != (point == fault.ImageStored) {
				t.Errorf("there is %+v, %v", list, err)
			}
			if point == fault.ImageStored {
				if _, err := s.Lowers(t.Context(), list[0].Digest); err != nil {
					t.Error(err)
				}
			}
			r.mu.Lock()
			clear(r.asked)
			r.mu.Unlock()
			got, err := s.Pull(t.Context(), ref, PullOptions{})
			must(t, err)
			lowers, err := s.Lowers(t.Context(), got.Digest)
			must(t, err)
			if len(lowers) != 2 || shownIn(t, lowers[1]) != "a=1  d/  d/b=1" {
				t.Errorf("got %v", lowers)
			}
			for digest := range r.asked {
				if slices.Contains(blobs, filepath.Join(blobFolder, hexOf(digest))) {
					t.Errorf("%s was there, and was downloaded again", digest)
				}
			}
		})
	}
}
