package web_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/test/covetest"
)

// TestLongAnswers: a page reads no more of a sandbox's answers than it may. That holds for
// long documents, for documents with many empty values, and for long lines. It says what to
// type, and shows what it can.
func TestLongAnswers(t *testing.T) {
	var answer string // of a list
	guest := http.NewServeMux()
	guest.HandleFunc("/v1/ports/watch", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(`{"type":"port_list","ports":[{"type":"port_opened","port":4711,"address":"0.0.0.0","pid":7}]}`))
		_ = conn.Close(websocket.StatusNormalClosure, "")
	})
	guest.HandleFunc("/v1/services/web/logs", func(w http.ResponseWriter, _ *http.Request) {
		line := fmt.Sprintf(`{"type":"stdout","data":%q}`, "it listens") + "\n"
		_, _ = fmt.Fprint(w, line, strings.Repeat(" ", 1<<20), line, `{"type":"complete"}`, "\n")
	})
	guest.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/services", "/v1/services/web", "/v1/fs/list", "/v1/exec":
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(answer))
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("{}"))
		}
	})
	rt := &covetest.InProcess{Dir: t.TempDir(), Handler: guest}
	t.Cleanup(func() { must(t, rt.Close()) })
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	_, err := s.Create("evil").Wake(t.Context())
	must(t, err)
	c := visitor(t, s)
	for what, list := range map[string]string{
		"long":       `[{"name":"web","cmd":"` + strings.Repeat("x", 5<<20) + `"}]`,
		"of nothing": "[" + strings.Repeat("{},", 1<<20) + "{}]",
	} {
		answer = list
		for path, want := range map[string]struct {
			status int
			has    []string
		}{
			"/services":          {http.StatusOK, []string{"cove exec -s evil ls /.sprite/services", "cove service rm -s evil NAME", "4711"}},
			"/services/web":      {http.StatusRequestEntityTooLarge, []string{"cove service logs -s evil web"}},
			"/files?path=/a":     {http.StatusRequestEntityTooLarge, []string{"cove exec -s evil ls /a"}},
			"/files?path=/a%27b": {http.StatusRequestEntityTooLarge, []string{"cove exec -s evil ls FOLDER"}},
			"/terminal/sessions": {http.StatusRequestEntityTooLarge, []string{"cove session list -s evil"}},
		} {
			status, page := read(t, c, s.URL+"/web/sprites/evil"+path)
			if status != want.status {
				t.Errorf("%s, a list %s: got %d: %.2000s", path, what, status, page)
			}
			for _, text := range want.has {
				if !strings.Contains(page, text) {
					t.Errorf("%s, a list %s: the page has no %q: %.3000s", path, what, text, page)
				}
			}
		}
	}
	answer = "[]"
	status, log := read(t, c, s.URL+"/web/sprites/evil/services/web/live") // which ends, since the log is cut
	if status != http.StatusOK || strings.Count(log, "it listens") != 1 {
		t.Errorf("the log has a line that is too long: got %d: %.2000s", status, log)
	}
}
