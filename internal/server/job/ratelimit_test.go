package job

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// TestCreateLimited: a limit on how often sprites are made is waited for, once, and only as
// long as the phase lasts. Other refusals are not.
func TestCreateLimited(t *testing.T) {
	for name, test := range map[string]struct {
		code    string
		after   string
		refused int // the first so many calls
		calls   int
		made    bool
	}{
		"once":            {createLimited, "1", 1, 2, true},
		"always":          {createLimited, "1", 9, 2, false},
		"for too long":    {createLimited, "3600", 9, 1, false},
		"without a time":  {createLimited, "", 9, 1, false},
		"too many at all": {"concurrent_sprite_limit_exceeded", "1", 9, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls++ // the client makes one call at a time
				if calls <= test.refused {
					if test.after != "" {
						w.Header().Set("Retry-After", test.after)
					}
					w.WriteHeader(http.StatusTooManyRequests)
					fmt.Fprintf(w, `{"error":%q,"message":"too often"}`, test.code)
					return
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, `{"name":"job-1","id":"far"}`)
			}))
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			info, err := createAt(ctx, &cove.Client{Client: &sprites.Client{URL: server.URL}}, sprites.CreateRequest{Name: "job-1"})
			if calls != test.calls || (err == nil) != test.made || test.made && info.ID != "far" || !test.made && !errors.Is(err, sprites.ErrLimited) {
				t.Errorf("%d calls: %+v, %v", calls, info, err)
			}
		})
	}
}
