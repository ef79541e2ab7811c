package web_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

// visitor is a browser without scripts, which is logged in.
func visitor(t testing.TB, s *covetest.Server) *http.Client { return visitorAs(t, s.Client()) }

// visitorAs is visitor for any client.
func visitorAs(t testing.TB, as *cove.Client) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	must(t, err)
	c := &http.Client{Jar: jar, Transport: &http.Transport{MaxConnsPerHost: 0, DisableCompression: true}}
	t.Cleanup(c.CloseIdleConnections)
	link, err := cove.Web{Client: as}.Link(t.Context())
	must(t, err)
	u, err := url.Parse(link.URL)
	must(t, err)
	resp, err := c.PostForm(as.URL+"/web/login", u.Query())
	must(t, err)
	must(t, resp.Body.Close())
	return c
}

// get reads a path as a browser that takes gzip, and gives its body as it was sent.
func get(t testing.TB, c *http.Client, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := c.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, resp.Status)
	}
	return body
}

// fleet is a server with many jobs and sprites.
func fleet(t testing.TB, n int) *covetest.Server {
	t.Helper()
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	for i := range n {
		put(t, s, i+1, func(j *cove.Job) {
			j.State = []cove.JobState{cove.JobRunning, cove.JobSucceeded, cove.JobFailed, cove.JobWaiting}[i%4]
			j.Commits, j.Outcome = i%3, &cove.Outcome{Kind: "success", Reason: "as it was asked"}
		})
		must(t, s.Store.Sprites.Create(t.Context(), &store.Sprite{ID: fmt.Sprintf("%016x", i+1), Name: fmt.Sprintf("job-%06x", i+1), MachineID: strings.Repeat("1", 32), Base: "host", Status: sprites.StatusCold, Labels: []string{"job"}}))
	}
	return s
}

// TestWeight: the start page, with full lists and all that it loads, is within its budget as it is sent.
func TestWeight(t *testing.T) {
	const budget = 150 << 10
	s := fleet(t, 100)
	c := visitor(t, s)
	page := get(t, c, s.URL+"/web")
	sum := len(page)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/web", nil)
	must(t, err)
	resp, err := c.Do(req)
	must(t, err)
	defer resp.Body.Close()
	plain, err := io.ReadAll(resp.Body)
	must(t, err)
	files := regexp.MustCompile(`(?:src|href)="(/web/static/[^"]+)"`).FindAllStringSubmatch(string(plain), -1)
	if len(files) < 4 {
		t.Fatalf("the page loads %v", files)
	}
	seen := map[string]bool{}
	for _, f := range files {
		if url := strings.ReplaceAll(f[1], "&amp;", "&"); !seen[url] {
			seen[url] = true
			sum += len(get(t, c, s.URL+url))
		}
	}
	t.Logf("the page has %d bytes, with its files %d", len(page), sum)
	if sum > budget {
		t.Errorf("the start page and its files have %d bytes, more than %d", sum, budget)
	}
}

// used is the memory that is in use, of the server and of the test.
func used() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestManyPages: many open pages hear of a change, and cost no more memory than they may, their
// clients included.
func TestManyPages(t *testing.T) {
	const pages, budget = 200, 100 << 20
	s := fleet(t, 100)
	c := visitor(t, s)
	before := used()
	streams := make([]*bufio.Reader, pages)
	heard := func(text string) {
		t.Helper()
		for i, r := range streams {
			for line := ""; !strings.Contains(line, text); {
				var err error
				if line, err = r.ReadString('\n'); err != nil {
					t.Fatalf("page %d: %v", i, err)
				}
			}
		}
	}
	for i := range streams {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/web/now/live", nil)
		must(t, err)
		resp, err := c.Do(req)
		must(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("page %d: %s", i, resp.Status)
		}
		streams[i] = bufio.NewReader(resp.Body)
	}
	heard("data: ") // it has none of the rows yet
	say(t, s, 1, 1, "something new")
	heard("something new")
	grown := used() - before
	t.Logf("%d pages have %.1f MB", pages, float64(grown)/(1<<20))
	if grown > budget {
		t.Errorf("%d pages have %d bytes, more than %d", pages, grown, budget)
	}
}

func BenchmarkLists(b *testing.B) {
	s := fleet(b, 1000)
	for n := range 20 { // as much as a search looks through
		var events []cove.JobEvent
		for seq := range int64(5000) {
			events = append(events, cove.JobEvent{Seq: seq + 1, Type: "event", Text: fmt.Sprintf(`{"type":"assistant","message":{"id":"%d","text":%q}}`, seq, strings.Repeat("as an agent says it ", 10))})
		}
		must(b, s.Store.Jobs.AppendEvents(b.Context(), fmt.Sprintf("%06x", n+1), events))
	}
	c := visitor(b, s)
	for _, path := range []string{"/web", "/web/jobs", "/web/jobs?group=review&q=plan", "/web/sprites", "/web/search", "/web/search?q=plan-77", "/web/search?q=agent%20says"} {
		b.Run(strings.NewReplacer("/", "_", "?", "_").Replace(path), func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				get(b, c, s.URL+path)
				took = append(took, time.Since(began))
			}
			first := took[0] // of a search: no log has been read yet
			percentiles(b, took)
			b.ReportMetric(float64(first.Microseconds())/1000, "first-ms")
		})
	}
}

func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkLongJob is the page of a job with 10,000 events. The page shows the newest.
func BenchmarkLongJob(b *testing.B) {
	s := fleet(b, 1)
	for seq := range int64(10_000) {
		say(b, s, 1, seq+1, fmt.Sprintf("line %d: as an agent says it", seq))
	}
	c := visitor(b, s)
	var took []time.Duration
	size := 0
	for b.Loop() {
		began := time.Now()
		size = len(get(b, c, s.URL+"/web/jobs/000001"))
		took = append(took, time.Since(began))
	}
	percentiles(b, took)
	b.ReportMetric(float64(size), "bytes")
}

// BenchmarkEvent is the time from before an event of a job is written to where a page has it. The
// floor is the write alone.
func BenchmarkEvent(b *testing.B) {
	s := fleet(b, 1)
	c := visitor(b, s)
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, s.URL+"/web/jobs/000001/live?start=1", nil)
	must(b, err)
	resp, err := c.Do(req)
	must(b, err)
	defer resp.Body.Close()
	page := bufio.NewReader(resp.Body)
	var took, floor []time.Duration
	for seq := int64(1); b.Loop(); seq++ {
		text := fmt.Sprintf("<line %d>", seq)
		began := time.Now()
		say(b, s, 1, seq, text)
		floor = append(floor, time.Since(began))
		for line, want := "", fmt.Sprintf("line %d", seq); !strings.Contains(line, want); {
			line, err = page.ReadString('\n')
			must(b, err)
		}
		took = append(took, time.Since(began))
	}
	percentiles(b, took)
	slices.Sort(floor)
	b.ReportMetric(float64(floor[len(floor)/2].Microseconds())/1000, "floor-p50-ms")
}

// talk adds what an agent says to the first job's log.
func talk(b *testing.B, s *covetest.Server, from, n int64) {
	b.Helper()
	var events []cove.JobEvent
	for seq := from; seq < from+n; seq++ {
		events = append(events, cove.JobEvent{Seq: seq, Time: time.Now(), Type: "output", Stream: "stdout", Text: fmt.Sprintf(`{"type":"assistant","message":{"content":[{"type":"text","text":"at %d: event %d."}]}}`, time.Now().UnixMicro(), seq)})
	}
	must(b, s.Store.Jobs.Append(b.Context(), "000001", events, &cove.JobLatest{Said: "event", Turns: from}))
}

// shown waits until a page has an event of talk's.
func shown(page *webtest.Page, seq int64) {
	page.Until(fmt.Sprintf("event %d is there", seq), fmt.Sprintf(`document.querySelector("#transcript > li:last-child")?.textContent.includes("event %d.")`, seq))
}

// BenchmarkEventInBrowser is the time from before an event of a job is written until a browser has it in its page.
func BenchmarkEventInBrowser(b *testing.B) {
	s := fleet(b, 1)
	page := webtest.Start(b).Open(s.Client(), webtest.Desktop)
	page.Goto("/web/jobs/000001")
	talk(b, s, 1, 1)
	shown(page, 1)
	page.Eval(`window.delays = []; new MutationObserver(all => {
		for (const m of all) for (const n of m.addedNodes) {
			const at = /at (\d+):/.exec(n.textContent);
			if (at) window.delays.push((performance.timeOrigin + performance.now()) * 1000 - Number(at[1]));
		}
	}).observe(document.getElementById("transcript"), {childList: true}); true`, nil)
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	seq := int64(1)
	for b.Loop() {
		<-pace.C
		seq++
		talk(b, s, seq, 1)
	}
	shown(page, seq)
	var micros []float64
	page.Eval("window.delays", &micros)
	var took []time.Duration
	for _, d := range micros {
		took = append(took, time.Duration(d*float64(time.Microsecond)))
	}
	percentiles(b, took)
}

// BenchmarkOpenPage is a job's page that stays open while its job has 10,000 events, and
// 10,000 more each round. It reports how many nodes the page has, and how much memory the
// server, after the first ones and at the end. Nobody scrolls the page, so that it keeps the
// most that it may.
func BenchmarkOpenPage(b *testing.B) {
	const round, batch, most = 10_000, 250, 6_000
	s := fleet(b, 1)
	page := webtest.Start(b).Open(s.Client(), webtest.Desktop)
	page.Goto("/web/jobs/000001")
	seq := int64(1)
	feed := func() (nodes int, memory int64) {
		for range round / batch {
			talk(b, s, seq, batch)
			seq += batch
			shown(page, seq-1)
		}
		page.Until("the page has no more entries than it may", fmt.Sprintf(`document.querySelectorAll("#transcript > [data-seq]").length <= %d`, most))
		page.Eval(`(() => { let n = 0; for (const w = document.createTreeWalker(document); w.nextNode();) n++; return n; })()`, &nodes)
		return nodes, used()
	}
	first, before := feed()
	nodes, memory := first, before
	for b.Loop() {
		nodes, memory = feed()
	}
	b.ReportMetric(float64(first), "first-nodes")
	b.ReportMetric(float64(before)/(1<<20), "first-MiB")
	b.ReportMetric(float64(nodes), "last-nodes")
	b.ReportMetric(float64(memory)/(1<<20), "last-MiB")
}
