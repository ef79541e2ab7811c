package cove_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

func ExampleClient_JobEvents() {
	client := &cove.Client{Client: &sprites.Client{URL: "http://127.0.0.1:7878"}}
	for event, err := range client.JobEvents(context.Background(), "a3f7b2", 1, true) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Seq, event.Type, event.Text)
	}
}
