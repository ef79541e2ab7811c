package job

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
)

// TestSendNotTaken: a message that the agent did not get is an error, although the log has the
// message by then. If it comes again when the agent has ended, that does not make it delivered.
func TestSendNotTaken(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	ctx, client, jobs := t.Context(), b.server.Client(), b.manager.Store.Jobs
	req := request()
	req.Agent, req.Plan, req.Converse, req.Env = "claude", "Do it.", true, []string{"ANTHROPIC_API_KEY=x"}
	job, err := client.CreateJob(ctx, req)
	if err == nil {
		err = jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.State = cove.JobWaiting; return nil })
	}
	if err == nil {
		err = os.MkdirAll(b.folder(job.ID), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	supervisor, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(b.folder(job.ID), "input.sock"))
	if err != nil {
		t.Fatal(err)
	}
	took := make(chan error, 1)
	go func() { took <- takeNot(ctx, supervisor, jobs, job.ID) }()
	send := func() string {
		_, err := client.SendJob(ctx, job.ID, cove.JobMessage{Text: "x", Key: "k1"})
		return code(err)
	}
	if got := send(); got != "not_delivered" {
		t.Errorf("the first time: got %s", got)
	}
	if err := <-took; err != nil {
		t.Fatal(err)
	}
	if err := jobs.AppendEvents(ctx, job.ID, []cove.JobEvent{{Seq: 2, Type: "notice", Text: "not taken", Key: "k1"}}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.folder(job.ID), "lock"), []byte("1\n"), 0o600); err != nil { // of a supervisor that has ended
		t.Fatal(err)
	}
	if got := send(); got != "job_ended" {
		t.Errorf("the second time: got %s", got)
	}
}

// takeNot is a supervisor that logs a message, and then can't hand it on. The server has its log
// before it answers. It takes one message.
func takeNot(ctx context.Context, l net.Listener, jobs *store.Jobs, id string) error {
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	var m cove.JobInputLine
	if err := json.NewDecoder(conn).Decode(&m); err != nil {
		return err
	}
	if err := jobs.AppendEvents(ctx, id, []cove.JobEvent{{Seq: 1, Type: "input", Text: "x", Key: m.Key}}); err != nil {
		return err
	}
	_, err = conn.Write([]byte(`{"error":"the agent has ended, or does not read: write |1: broken pipe"}` + "\n"))
	return err
}
