package store

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// foldASCII is a text with ASCII letters in lower case.
func foldASCII(s string) string {
	return string(bytes.Map(func(r rune) rune {
		if r < 0x80 {
			return rune(lower(byte(r)))
		}
		return r
	}, []byte(s)))
}

// TestLines: a search finds the same lines as one that reads each event. It does so the first
// time, and when parts of the logs are known. It also does when a log has grown, and for a
// new job with a deleted one's ID.
func TestLines(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	at := time.Now()
	texts := map[string][]string{}
	create := func(id string, created time.Time) {
		t.Helper()
		must(t, s.Jobs.Create(ctx, cove.Job{ID: id, State: cove.JobQueued, CreatedAt: created}, nil))
	}
	grow := func(id string, n int, text func(i int) string) {
		t.Helper()
		var events []cove.JobEvent
		for range n {
			texts[id] = append(texts[id], text(len(texts[id])+1))
			events = append(events, cove.JobEvent{Seq: int64(len(texts[id])), Type: "output", Text: texts[id][len(texts[id])-1]})
		}
		must(t, s.Jobs.AppendEvents(ctx, id, events))
	}
	looks := []string{"needle", "NEEDLE 7", "needle 1999 ", "50% off_", `a "quote" <b>`, "über", "ÜBER", "e 7", "zz", "a\\b", "nowhere to be found", "\xff\xfe\xfd", "edl\x00"}
	ids := []string{"b", "a"} // the newest first
	same := func(when string) {
		t.Helper()
		for _, look := range looks {
			got, older, err := s.Jobs.Lines(ctx, look, nil)
			must(t, err)
			var want, have []string
			for _, id := range ids {
				of := 0
				for i := len(texts[id]); i > 0 && of < linesOfJob; i-- {
					if strings.Contains(foldASCII(texts[id][i-1]), foldASCII(look)) {
						want = append(want, fmt.Sprint(id, " ", i))
						of++
					}
				}
			}
			for _, l := range got {
				have = append(have, fmt.Sprint(l.Job, " ", l.Seq))
			}
			if fmt.Sprint(have) != fmt.Sprint(want) || older {
				t.Errorf("%s, %q: got %v, want %v, older %v", when, look, have, want, older)
			}
		}
	}
	say := func(i int) string {
		switch {
		case i%700 == 7:
			return fmt.Sprintf("a Needle %d is here: 50%% OFF_ a\\b a \"quote\" <b> über", i)
		case i%900 == 1:
			return ""
		}
		return fmt.Sprintf("line %d of what is said, and nothing more", i)
	}
	create("a", at)
	create("b", at.Add(time.Second))
	grow("a", 2*partEvents+300, say)
	grow("b", 3, say)
	same("at first")
	known := len(s.Jobs.parts.of)
	if known != 4 {
		t.Errorf("%d parts are known", known)
	}
	same("again")

	// A part that can't have the text is not read again: the database has another text by now.
	_, err := s.db.write.ExecContext(ctx, `UPDATE job_events SET doc = '{"text":"nowhere to be found"}' WHERE job = 'a' AND seq = 5`)
	must(t, err)
	same("of known parts")

	grow("b", 10, func(int) string { return "the needle 1999 of later, nowhere to be found" })
	same("of a log that has grown")
	must(t, s.Jobs.Delete(ctx, "b"))
	delete(texts, "b")
	create("b", at.Add(2*time.Second))
	grow("b", 13, func(int) string { return "another job: zz over there" })
	same("of another job by the same ID")
}

// TestLogPartsAreBounded: what is known of logs takes no more memory than it may.
func TestLogPartsAreBounded(t *testing.T) {
	var l logParts
	for i := range 2 * maxLogsKnown / maxTrigrams {
		l.put(logPart{job: "a", first: int64(i)}, make(trigrams, maxTrigrams))
		l.put(logPart{job: "a", first: int64(i)}, make(trigrams, maxTrigrams))
		sum := 0
		for _, t := range l.of {
			sum += len(t)
		}
		if sum != l.bytes || sum > maxLogsKnown {
			t.Fatalf("%d bytes are known, counted are %d", sum, l.bytes)
		}
	}
}
