package loop

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"github.com/cove-dev/cove/internal/lib/tools"
)

// anthropicAPI is the Messages API.
type anthropicAPI struct{ messages anthropic.MessageService }

// Only the service is made, not the client, which would take keys, tokens and profiles from
// wherever it finds some.
func newAnthropic(a Access) (Provider, error) {
	opts := []option.RequestOption{option.WithBaseURL(a.BaseURL), option.WithHTTPClient(client()), option.WithMaxRetries(0)}
	if a.Key != "" {
		opts = append(opts, option.WithAPIKey(a.Key))
	} else {
		opts = append(opts, option.WithAuthToken(a.Token))
	}
	return &anthropicAPI{anthropic.NewMessageService(opts...)}, nil
}

var anthropicStops = map[anthropic.StopReason]Stop{
	anthropic.StopReasonEndTurn: StopEnd, anthropic.StopReasonStopSequence: StopEnd, anthropic.StopReasonToolUse: StopTools,
	anthropic.StopReasonMaxTokens: StopLength, anthropic.StopReasonRefusal: StopRefused, "model_context_window_exceeded": StopLength,
}

func (p *anthropicAPI) Ask(ctx context.Context, req Request, heard func(Piece)) (Answer, error) {
	stream := p.messages.NewStreaming(ctx, p.params(req))
	defer stream.Close()
	var m anthropic.Message
	whole := false
	for stream.Next() {
		ev := stream.Current()
		if err := m.Accumulate(ev); err != nil {
			return Answer{}, lost(err)
		}
		switch ev.Type {
		case "message_start", "message_delta":
			u := anthropicUsage(m.Usage)
			heard(Piece{Usage: &u})
		case "content_block_delta":
			d := ev.Delta
			heard(Piece{Text: d.Text, Bytes: len(d.Text) + len(d.PartialJSON) + len(d.Thinking)})
		case "message_stop":
			whole = true
		}
	}
	if err := stream.Err(); err != nil {
		return Answer{}, anthropicError(err)
	}
	if !whole {
		return Answer{}, lost(errCut)
	}
	a := Answer{Stop: cmp.Or(anthropicStops[m.StopReason], StopMalformed), Usage: anthropicUsage(m.Usage), Message: Message{Model: true}}
	for _, b := range m.Content {
		switch b.Type {
		case "text":
			a.Message.Text += b.Text
		case "tool_use":
			a.Message.Calls = append(a.Message.Calls, Call{ID: b.ID, Tool: b.Name, Input: valid(b.Input)})
		}
	}
	var err error
	if len(m.Content) > 0 {
		a.Message.Native, err = json.Marshal(m.ToParam())
	}
	return a, err
}

func anthropicUsage(u anthropic.Usage) Usage {
	return Usage{Input: u.InputTokens + u.CacheCreationInputTokens + u.CacheReadInputTokens, Output: u.OutputTokens}
}

func anthropicError(err error) *APIError {
	e, ok := errors.AsType[*anthropic.Error](err)
	if !ok {
		return lost(err)
	}
	var said struct {
		Error struct{ Message string }
	}
	_ = json.Unmarshal([]byte(e.RawJSON()), &said) // else it has no message
	return &APIError{Status: e.StatusCode, Kind: string(e.Type()), Text: cmp.Or(said.Error.Message, e.RawJSON(), http.StatusText(e.StatusCode))}
}

func (p *anthropicAPI) params(req Request) anthropic.MessageNewParams {
	params := anthropic.MessageNewParams{
		Model: req.Model, MaxTokens: req.MaxOutput, System: []anthropic.TextBlockParam{{Text: req.System}},
		CacheControl: anthropic.NewCacheControlEphemeralParam(),
	}
	for _, t := range req.Tools {
		params.Tools = append(params.Tools, anthropicTool(t))
	}
	for _, m := range req.Messages {
		if m.Native != nil {
			params.Messages = append(params.Messages, param.Override[anthropic.MessageParam](m.Native))
			continue
		}
		var blocks []anthropic.ContentBlockParamUnion
		for _, r := range m.Results {
			block := anthropic.NewToolResultBlock(r.ID, cmp.Or(r.Text, "(nothing)"), r.Failed)
			if i := r.Image; i != nil {
				block.OfToolResult.Content = append(block.OfToolResult.Content, anthropicImage(i))
			}
			blocks = append(blocks, block)
		}
		if m.Text != "" {
			blocks = append(blocks, anthropic.NewTextBlock(m.Text))
		}
		params.Messages = append(params.Messages, anthropic.NewUserMessage(blocks...))
	}
	return params
}

func anthropicImage(i *tools.Image) anthropic.ToolResultBlockParamContentUnion {
	return anthropic.ToolResultBlockParamContentUnion{OfImage: &anthropic.ImageBlockParam{Source: anthropic.ImageBlockParamSourceUnion{
		OfBase64: &anthropic.Base64ImageSourceParam{Data: base64.StdEncoding.EncodeToString(i.Data), MediaType: anthropic.Base64ImageSourceMediaType(i.MIME)},
	}}}
}

func anthropicTool(t tools.Tool) anthropic.ToolUnionParam {
	return anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{
		Name: t.Name, Description: param.NewOpt(t.Description),
		InputSchema: param.Override[anthropic.ToolInputSchemaParam](schema(t)),
	}}
}
