// Command job has an agent carry out a plan in the repository of this folder. It makes a profile, starts
// a job, shows each step, answers what the agent asks, and removes all that it made. Its arguments are two
// files: the settings of the profile as JSON, and the plan.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// must panics, so that what is deferred is done.
func must[T any](v T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return v
}

func git(args ...string) []byte { return must(exec.Command("git", args...).Output()) }

func main() {
	ctx := context.Background()
	client := &cove.Client{Client: &sprites.Client{URL: os.Getenv("COVE_URL"), Token: os.Getenv("COVE_TOKEN")}}
	profiles, feed := cove.Profiles{Client: client}, cove.Feed{Client: client}
	var settings cove.ProfileSettings
	must(0, json.Unmarshal(must(os.ReadFile(os.Args[1])), &settings))
	must(profiles.Put(ctx, "example", 0, settings))
	defer func() { must(0, profiles.Delete(ctx, "example")) }()

	git("update-ref", "refs/cove/base", "HEAD")
	bundle := git("bundle", "create", "-q", "-", "refs/cove/base")
	req := cove.JobRequest{Plan: string(must(os.ReadFile(os.Args[2])))}
	req.Profile, req.Base = "example", strings.TrimSpace(string(git("rev-parse", "refs/cove/base")))
	job := must(client.CreateJob(ctx, req))
	defer func() { must(0, client.DeleteJob(ctx, job.ID, true)) }() // and its sprite
	must(0, client.Sprite(job.Sprite).WriteFile(ctx, job.Upload, bytes.NewReader(bundle), sprites.WriteOptions{}))
	must(client.StartJob(ctx, job.ID, cove.JobStart{BundleSHA256: fmt.Sprintf("%x", sha256.Sum256(bundle)), BundleSize: int64(len(bundle))}))

	for news, err := range feed.Follow(ctx, cove.Subscription{Topics: []string{"jobs", "steps"}, Job: job.ID}) {
		for _, n := range must(news, err).Steps {
			fmt.Print(n.Text)
			for _, step := range n.Steps() {
				fmt.Println("==", step.Key, step.State, step.Error)
			}
		}
		if news.Job != nil && news.Job.Question != nil {
			q := news.Job.Question
			fmt.Println("??", q.Title)
			yes := slices.IndexFunc(q.Options, func(o cove.QuestionOption) bool { return o.Kind == "allow_once" })
			must(client.AnswerJob(ctx, job.ID, cove.JobAnswer{Question: q.ID, Option: q.Options[yes].ID, Key: q.ID})) // once, by its key
		} else if news.Job != nil && news.Job.Outcome != nil {
			fmt.Println("==", news.Job.State, news.Job.Outcome.Reason)
			return
		}
	}
}
