package web

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// TestNotMeasured: a value that a machine does not measure is left out of the API's answer, and no chart says 0 of it.
func TestNotMeasured(t *testing.T) {
	now := time.Now()
	some := sprites.Stats{Samples: []sprites.Sample{{Time: now.Add(-time.Minute), WrittenBytes: 4096}, {Time: now, WrittenBytes: 8192}}}
	answer, err := json.Marshal(some)
	must(t, err)
	for _, name := range []string{"memory_bytes", "cpu_microseconds"} {
		if strings.Contains(string(answer), name) {
			t.Errorf("the API says %s of what is not measured: %s", name, answer)
		}
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
	defer api.Close()
	v := &spriteView{&view{api: &cove.Client{Client: &sprites.Client{URL: api.URL, Token: "t"}}}, "paint"}
	all, err := v.charts(t.Context(), spriteHead{})
	must(t, err)
	page, err := html("sprite-charts", overviewPage{Charts: all})
	must(t, err)
	if n := strings.Count(page, "not measured on this machine"); n != 2 || strings.Contains(page, "Memory <strong>") || strings.Contains(page, "0.0 %") {
		t.Errorf("%d are not measured: %s", n, page)
	}
	if !strings.Contains(page, "Written to disk <strong>68 B/s") {
		t.Errorf("what is measured is not drawn: %s", page)
	}
}
