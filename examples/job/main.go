// Command job has an agent carry out a plan in the repository of this folder. It makes a profile, starts
// a job, shows each step, answers what the agent asks, and removes all that it made. It calls the HTTP API
// as openapi.json has it. Its arguments are two files: the settings of the profile as JSON, and the plan.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/cove-dev/cove"
)

type object = map[string]any

var url, header = os.Getenv("COVE_URL"), http.Header{"Authorization": {"Bearer " + os.Getenv("COVE_TOKEN")}}

// must panics, so that what is deferred is done.
func must[T any](v T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return v
}

func git(args ...string) []byte { return must(exec.Command("git", args...).Output()) }

func call(method, path string, body []byte) (answer struct{ ID, Sprite, Upload string }) {
	req := must(http.NewRequest(method, url+path, bytes.NewReader(body)))
	req.Header = header
	resp := must(http.DefaultClient.Do(req))
	defer resp.Body.Close()
	text := must(io.ReadAll(resp.Body))
	if resp.StatusCode >= 400 {
		log.Panicf("%s %s: %s", method, path, text)
	}
	_ = json.Unmarshal(text, &answer) // some answers are empty
	return answer
}

func main() {
	call("PUT", "/v1/profiles/example", must(os.ReadFile(os.Args[1])))
	defer call("DELETE", "/v1/profiles/example", nil)
	commit := strings.TrimSpace(string(git("rev-parse", "HEAD")))
	git("update-ref", "refs/cove/base", commit)
	bundle := git("bundle", "create", "-q", "-", "refs/cove/base")
	plan := string(must(os.ReadFile(os.Args[2])))
	job := call("POST", "/v1/jobs", must(json.Marshal(object{"profile": "example", "plan": plan, "base": commit})))
	defer call("DELETE", "/v1/jobs/"+job.ID+"?force=true", nil) // and its sprite
	call("PUT", "/v1/sprites/"+job.Sprite+"/fs/write?path="+job.Upload, bundle)
	call("POST", "/v1/jobs/"+job.ID+"/start", must(json.Marshal(object{"bundle_sha256": fmt.Sprintf("%x", sha256.Sum256(bundle)), "bundle_size": len(bundle)})))

	ctx := context.Background()
	socket, _, err := websocket.Dial(ctx, url+"/v1/ws", &websocket.DialOptions{HTTPHeader: header})
	must(socket, err).SetReadLimit(1 << 24)
	ask := func(method string, params object) {
		must(0, wsjson.Write(ctx, socket, object{"id": 1, "method": method, "params": params}))
	}
	ask("subscribe", object{"topics": []string{"jobs", "steps"}, "job": job.ID})
	for asked := ""; ; {
		var m cove.SocketMessage
		must(0, wsjson.Read(ctx, socket, &m))
		for _, news := range m.Steps {
			if fmt.Print(news.Text); news.Step != nil {
				fmt.Println("==", news.Step.Key, news.Step.State, news.Step.Error)
			}
		}
		if m.Error != nil {
			log.Panic(m.Error.Message)
		} else if m.Job != nil && m.Job.Question != nil && m.Job.Question.ID != asked {
			asked = m.Job.Question.ID
			fmt.Println("??", m.Job.Question.Title)
			yes := slices.IndexFunc(m.Job.Question.Options, func(o cove.QuestionOption) bool { return o.Kind == "allow_once" })
			ask("jobs.answer", object{"id": job.ID, "question": asked, "option": m.Job.Question.Options[yes].ID})
		} else if m.Job != nil && m.Job.Outcome != nil {
			fmt.Println("==", m.Job.State, m.Job.Outcome.Reason)
			return
		}
	}
}
