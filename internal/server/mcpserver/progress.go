package mcpserver

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// tell sends a call's progress to the client, if the client asked for it. stop waits until
// the last message is sent.
func tell(ctx context.Context, req *mcp.CallToolRequest) (progress func(message string), stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func(string) {}, func() {}
	}
	begun := time.Now()
	news, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		for message := range news {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ // the call's answer tells of a lost client
				ProgressToken: token, Progress: time.Since(begun).Seconds(), Message: message,
			})
		}
	}()
	var mu sync.Mutex
	ended := false
	return func(message string) {
			mu.Lock()
			defer mu.Unlock()
			if ended {
				return
			}
			select {
			case news <- message:
			default: // the client is slow: it gets the next
			}
		}, func() {
			mu.Lock()
			ended = true
			close(news)
			mu.Unlock()
			<-done
		}
}
