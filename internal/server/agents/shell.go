package agents

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cove-dev/cove"
)

// Shell carries out a plan without a model. It runs the plan's fenced sh and bash blocks in
// order, each in its own shell from the top of the repository. After each block it commits the
// block's changes, under the heading above it. It stops at the first block that fails.
type Shell struct{}

//go:embed shell.sh
var shellDriver []byte

// maxSteps bounds a plan.
const maxSteps = 999

// Name is "shell".
func (Shell) Name() string { return "shell" }

// Prepare turns the plan's blocks into files.
func (Shell) Prepare(t Task) (Work, error) {
	if t.Model != "" {
		return Work{}, errors.New("the agent shell asks no model; leave out --model")
	}
	all := steps(t.Plan)
	if len(all) == 0 {
		return Work{}, errors.New("the plan has no block for a shell; the shell agent runs blocks that are fenced by ```sh or ```bash")
	}
	if len(all) > maxSteps {
		return Work{}, fmt.Errorf("the plan has %d blocks for a shell; the limit is %d", len(all), maxSteps)
	}
	files := map[string]File{"shell.sh": {shellDriver, 0o755}}
	for i, s := range all {
		title := s.Title
		if title == "" {
			title = fmt.Sprintf("Step %d", i+1)
		}
		begin, err := json.Marshal(shellEvent{Type: "step", N: i + 1, Title: title, Line: s.Line, Last: s.Last})
		if err != nil {
			return Work{}, err
		}
		name := fmt.Sprintf("steps/%03d", i+1)
		// Blank lines before it make the lines in the shell's messages the plan's.
		files[name+"."+s.Shell] = File{[]byte(strings.Repeat("\n", s.Line-1) + s.Code), 0o644}
		files[name+".title"] = File{[]byte(title + "\n"), 0o644}
		files[name+".json"] = File{append(begin, '\n'), 0o644}
	}
	return Work{
		Files:  files,
		Turn:   &cove.LineRule{Stream: "events", Fields: map[string]string{"type": "step"}},
		Verify: []string{"git", "--version"}, // for its commits; a shell is always there
		Argv:   []string{"/bin/sh", t.Dir + "/shell.sh", t.Dir + "/steps", fmt.Sprint(len(all))},
	}, nil
}

// shellEvent is what the driver writes to file descriptor 3.
type shellEvent struct {
	Type  string `json:"type"` // step, step_end, result
	N     int    `json:"n,omitempty"`
	Title string `json:"title,omitempty"`
	Line  int    `json:"line,omitempty"` // of the plan, that its block begins with
	Last  int    `json:"last,omitempty"` // and ends with
	Exit  int    `json:"exit,omitempty"`
	OK    bool   `json:"ok,omitempty"`
}

// place says which lines of the plan the step is.
func (e shellEvent) place() string {
	switch {
	case e.Line <= 0: // of an earlier cove, which did not say
		return ""
	case e.Last <= e.Line:
		return fmt.Sprintf(", line %d of the plan,", e.Line)
	}
	return fmt.Sprintf(", lines %d to %d of the plan,", e.Line, e.Last)
}

// Read begins the reading of a log.
func (Shell) Read() Reader { return &shellReader{} }

type shellReader struct {
	step   shellEvent // the last that began
	result bool
}

func (r *shellReader) Event(ev cove.JobEvent) []Event {
	if ev.Type != "event" {
		return nil
	}
	var e shellEvent
	if json.Unmarshal([]byte(ev.Text), &e) != nil {
		return nil
	}
	switch e.Type {
	case "step":
		r.step = e
		return []Event{{Kind: KindStep, Text: fmt.Sprintf("%d. %s", e.N, e.Title)}}
	case "step_end":
		return []Event{{Kind: KindStepEnd, Failed: e.Exit != 0, Text: fmt.Sprintf("exit %d", e.Exit)}}
	case "result":
		r.result = e.OK
		return []Event{{Kind: KindResult, Failed: !e.OK}}
	}
	return nil
}

func (r *shellReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	if o, ok := settled(end); ok {
		if o.Kind == TurnLimit { // it has no model: its turns are the steps of the plan
			o.Reason = strings.Replace(o.Reason, "its model's turns", "the plan's steps", 1) // as an earlier supervisor says, and agents.go
			if said, ok := strings.CutSuffix(o.Reason, " turns"); ok {
				o.Reason = said + " of the plan's steps"
			}
		}
		return o, nil
	}
	o := cove.Outcome{Kind: Success, ExitCode: end.ExitCode}
	switch {
	case end.ExitCode != 0 && r.step.N > 0:
		o.Kind = AgentFailed
		o.Reason = fmt.Sprintf("step %d (%s)%s exited with %d", r.step.N, strings.TrimSpace(r.step.Title), r.step.place(), end.ExitCode)
	case end.ExitCode != 0:
		o.Kind, o.Reason = AgentFailed, fmt.Sprintf("exited with %d before its first step", end.ExitCode)
	case !r.result:
		o.Kind, o.Reason = NoResult, "ended without saying that it was done"
	}
	return o, nil
}
