package cove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/cove-dev/cove/sprites"
)

// ExecutorTest says which executor to test (POST /v1/executors/test). An executor is a
// place where jobs work: the server itself, or a backend. At most one of Profile, Backend
// and URL is given; without any, the server itself is tested.
type ExecutorTest struct {
	Profile string `json:"profile,omitempty"` // its backend, with its settings
	Backend string `json:"backend,omitempty"` // one that the server knows

	// URL and Token are a server of the protocol that need not be known. The server keeps
	// neither of them.
	URL   string `json:"url,omitempty"`
	Token string `json:"token,omitempty"`

	Agent string `json:"agent,omitempty"` // that carries out the prompt; empty: the profile's, or shell
	Quick bool   `json:"quick,omitempty"` // only connection, token and list: nothing is made
}

// The steps of a test, in their order. Those of a quick one are the first three.
const (
	TestConnection    StepKey = "connection"
	TestAuth          StepKey = "auth"
	TestList          StepKey = "list" // and removes the leftovers of an interrupted test
	TestCreate        StepKey = "create"
	TestPolicy        StepKey = "policy"
	TestUpload        StepKey = "upload"
	TestInstall       StepKey = "install"
	TestService       StepKey = "service"
	TestTunnel        StepKey = "tunnel"
	TestHealth        StepKey = "health"
	TestClone         StepKey = "clone"        // of the repository of the profile
	TestSetupScript   StepKey = "setup_script" // of the profile
	TestPrompt        StepKey = "prompt"
	TestCleanupScript StepKey = "cleanup_script" // of the profile; also if the prompt failed
	TestDestroy       StepKey = "destroy"
)

// ExecutorStep is a step of a test of an executor.
type ExecutorStep struct {
	Step
	MS float64 `json:"ms"` // how long it took
}

// ExecutorNews is a line of the answer to POST /v1/executors/test. There is one when a step
// begins, and one when it ends. The last line has Over; an answer without it was cut off.
type ExecutorNews struct {
	Step *ExecutorStep `json:"step,omitempty"`

	Over   bool   `json:"over,omitempty"`
	OK     bool   `json:"ok,omitempty"`     // with Over: no step failed
	Sprite string `json:"sprite,omitempty"` // with Over: the sprite that was made; empty: none
}

// ExecutorList is the answer to GET /v1/executors.
type ExecutorList struct {
	Executors []ExecutorStatus `json:"executors"` // the server itself first, then the backends by name
}

// ExecutorStatus says whether an executor can be used now.
type ExecutorStatus struct {
	Backend   string             `json:"backend,omitempty"` // its name; empty: it is the server itself
	URL       string             `json:"url,omitempty"`     // of the backend
	Connected bool               `json:"connected"`         // it answers, and takes the token
	MS        float64            `json:"ms"`                // how long that took
	Error     *sprites.ErrorBody `json:"error,omitempty"`   // why it is not connected
	Jobs      int                `json:"jobs"`              // there that have not ended
}

// List asks each executor whether it can be used now.
func (e Executors) List(ctx context.Context) ([]ExecutorStatus, error) {
	var list ExecutorList
	if err := e.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "executors")}, &list); err != nil {
		return nil, fmt.Errorf("list executors: %w", err)
	}
	return list.Executors, nil
}

// Executors are the calls about executors. They need the verb admin.
type Executors struct{ Client *Client }

// Test tests an executor, and calls each for the steps. A step that fails is no error. The
// server removes everything that a test has made, also if ctx ends or each returns an error
// before.
func (e Executors) Test(ctx context.Context, test ExecutorTest, each func(ExecutorNews) error) error {
	for line, err := range e.Client.Lines(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "executors", "test"), JSON: test}) {
		if err != nil {
			return fmt.Errorf("test an executor: %w", err)
		}
		var news ExecutorNews
		if err := json.Unmarshal(line, &news); err != nil {
			return fmt.Errorf("read the steps of a test: %w", err)
		}
		if err := each(news); err != nil || news.Over {
			return err
		}
	}
	return fmt.Errorf("test an executor: %w", errors.Join(ctx.Err(), errTestCut))
}

var errTestCut = errors.New("the server ended before the test did; its next start removes what the test made")
