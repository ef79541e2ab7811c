package mcpserver

import (
	"context"
	"encoding/base64"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/tools"
)

// holdKey finds the function that a request's calls ask.
type holdKey struct{}

// WithHold has each call of a request ask hold before it answers with so many bytes,
// which are in memory until the request is over. If that gives an error, the call is
// answered with the error instead: a sandbox chooses how long its answers are.
func WithHold(ctx context.Context, hold func(bytes int64) error) context.Context {
	return context.WithValue(ctx, holdKey{}, hold)
}

// withHoldOf is ctx with the hold that WithHold has given another context.
func withHoldOf(ctx, other context.Context) context.Context {
	if hold, ok := other.Value(holdKey{}).(func(int64) error); ok {
		return WithHold(ctx, hold)
	}
	return ctx
}

// copies is how often a result is in memory while it is sent: as it came, as text, and
// encoded. The encoded form may have two bytes for one of text.
const copies = 4

// room asks whether a result may be answered.
func room(ctx context.Context, result *mcp.CallToolResult) error {
	hold, ok := ctx.Value(holdKey{}).(func(int64) error)
	if !ok {
		return nil
	}
	var size int64
	for _, c := range result.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			size += int64(len(c.Text))
		case *mcp.ImageContent:
			size += int64(base64.StdEncoding.EncodedLen(len(c.Data)))
		}
	}
	if hold(copies*size) != nil {
		return &fail.Error{Code: tools.CodeBusy, Message: "the server has no room for more answers; ask for less, or make fewer calls at once."}
	}
	return nil
}
