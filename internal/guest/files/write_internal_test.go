package files

import (
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/guest/users"
)

// last is a body that begins to end when the other uploads have come as far.
type last struct{ here *sync.WaitGroup }

func (l last) Read([]byte) (int, error) {
	l.here.Done()
	l.here.Wait()
	return 0, io.EOF
}

// TestOneETagOneChange: of several calls that change the same version of a file at once, one
// succeeds. The others are told that there is another version.
func TestOneETagOneChange(t *testing.T) {
	dir := t.TempDir()
	s := New(&users.Database{}, strconv.Itoa(os.Getuid()), dir)
	defer s.Close()
	name := filepath.Join(dir, "file")
	for range 600 {
		if err := os.WriteFile(name, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		st, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		const calls = 4
		results := make(chan error, calls)
		var here sync.WaitGroup
		here.Add(calls)
		for i := range calls {
			go func() {
				r := httptest.NewRequestWithContext(t.Context(), "PUT", "/v1/fs/write?path=file", last{&here})
				call := s.putWrite
				if i == 0 {
					here.Done()
					here.Wait()
					r, call = httptest.NewRequestWithContext(t.Context(), "DELETE", "/v1/fs/delete?path=file", nil), s.deleteFile
				}
				r.Header.Set("If-Match", etag(st))
				results <- call(httptest.NewRecorder(), r)
			}()
		}
		done := 0
		for range calls {
			if err := <-results; err == nil {
				done++
			} else if !errors.Is(err, syscall.ESTALE) {
				t.Fatal(err)
			}
		}
		if done != 1 {
			t.Fatalf("%d calls have changed the file", done)
		}
	}
}
