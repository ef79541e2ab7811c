package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// BenchmarkStepOutput (P2) measures the time from the order to a setup script to print a line until a client that
// follows the steps has the line. The line passes the script's shell, the supervisor's log, the server's store and
// HTTP. The benchmark reports the median and the 99th percentile.
func BenchmarkStepOutput(b *testing.B) {
	w := newBench(b)
	w.serve(time.Second, 0)
	fifo := filepath.Join(b.TempDir(), "print")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		b.Fatal(err)
	}
	job := w.queue(func(r *cove.JobRequest) {
		r.SetupScript = &cove.SetupScript{Name: "prints", Text: "while read -r line; do echo \"$line\"; done <" + fifo, TimeoutSec: 3600}
		r.Plan = "# None\n```sh\ntrue\n```\n"
	})
	print, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the script
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = print.Close() }()
	lines, text := make(chan time.Time), ""
	followed := make(chan error, 1)
	done := errors.New("all lines have come")
	n := 0
	b.ResetTimer()
	go func() {
		followed <- cove.Steps{Client: w.server.Client()}.Follow(b.Context(), job.ID, func(news cove.StepNews) error {
			switch {
			case news.Snapshot != nil:
				for _, step := range news.Snapshot.Steps {
					if step.Key == cove.StepSetupScript {
						text += step.Output.String()
					}
				}
				lines <- time.Now() // it listens
			case news.Step != nil && news.Step.Key == cove.StepSetupScript:
				text += news.Text
			}
			for strings.Contains(text, fmt.Sprintf("line %d\n", n)) {
				lines <- time.Now()
				if n++; n == b.N {
					return done
				}
			}
			return nil
		})
	}()
	<-lines
	var late []time.Duration
	for i := range b.N {
		asked := time.Now()
		if _, err := fmt.Fprintf(print, "line %d\n", i); err != nil {
			b.Fatal(err)
		}
		select {
		case came := <-lines:
			late = append(late, came.Sub(asked))
		case err := <-followed:
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := <-followed; !errors.Is(err, done) {
		b.Error(err)
	}
	_ = print.Close() // the script ends
	w.await(job.ID)
	slices.Sort(late)
	b.ReportMetric(late[len(late)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(late[len(late)*99/100].Seconds()*1000, "p99-ms")
	b.ReportMetric(0, "ns/op")
}
