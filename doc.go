// Package cove is a Go client for what a cove server has beyond the Sprites protocol: jobs (an
// agent carries out a plan in a repository, in a sandbox), connectors, secrets, tokens, backends,
// installed agents. The protocol itself, and its client, is the package sprites:
//
//	client := &cove.Client{Client: &sprites.Client{URL: "http://127.0.0.1:7878", Token: token}}
//	job, err := client.WaitJob(ctx, "j7")
//	out, err := client.Sprite(job.Sprite).Command("git", "log", "--oneline").Output()
//
// The programs are below cmd; ARCHITECTURE.md walks through the rest.
package cove

import "github.com/cove-dev/cove/sprites"

// A Client makes the calls of a cove server's API. Its own methods make those that no other
// server of the Sprites protocol has. The embedded client's methods make the rest. Its
// methods may be called from any goroutine.
type Client struct {
	*sprites.Client // required
}
