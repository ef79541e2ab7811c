package loop

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"regexp"
	"sync"

	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"

	"github.com/cove-dev/cove/internal/lib/tools"
)

// openaiAPI is the Responses API, which is told the whole conversation each time and
// keeps nothing.
type openaiAPI struct{ responses responses.ResponseService }

// Only the service is made, not the client, which would take keys from wherever it finds some,
// and link three times as much.
func newOpenAI(a Access) (Provider, error) {
	return &openaiAPI{responses.NewResponseService(
		option.WithBaseURL(a.BaseURL), option.WithHTTPClient(client()), option.WithMaxRetries(0), option.WithAPIKey(cmp.Or(a.Key, a.Token)),
	)}, nil
}

// reasons matches the models that think. Their thoughts must be sent back to them. Other
// models refuse a request for thoughts.
var reasons = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(o[1-9]|gpt-[5-9]|codex)`) })

func (p *openaiAPI) Ask(ctx context.Context, req Request, heard func(Piece)) (Answer, error) {
	params, err := p.params(req)
	if err != nil {
		return Answer{}, err
	}
	stream := p.responses.NewStreaming(ctx, params)
	defer stream.Close()
	for stream.Next() {
		ev := stream.Current()
		switch ev.Type {
		case "response.output_text.delta":
			heard(Piece{Text: ev.Delta, Bytes: len(ev.Delta)})
		case "response.function_call_arguments.delta", "response.reasoning_summary_text.delta", "response.refusal.delta":
			heard(Piece{Bytes: len(ev.Delta)})
		case "response.completed", "response.incomplete":
			return openaiAnswer(ev.Response)
		case "response.failed":
			e := ev.Response.Error
			return Answer{}, &APIError{Status: 200, Kind: string(e.Code), Text: e.Message}
		}
	}
	if err := stream.Err(); err != nil {
		return Answer{}, openaiError(err)
	}
	return Answer{}, lost(errCut)
}

// openaiAnswer reads a response that has ended.
func openaiAnswer(r responses.Response) (Answer, error) {
	a := Answer{Stop: StopEnd, Usage: Usage{Input: r.Usage.InputTokens, Output: r.Usage.OutputTokens}, Message: Message{Model: true}}
	var native []json.RawMessage
	for _, item := range r.Output {
		native = append(native, json.RawMessage(item.RawJSON()))
		switch item.Type {
		case "message":
			for _, c := range item.Content {
				a.Message.Text += c.Text
				if c.Type == "refusal" {
					a.Stop = StopRefused
					a.Message.Text += c.Refusal
				}
			}
		case "function_call":
			a.Message.Calls = append(a.Message.Calls, Call{ID: item.CallID, Tool: item.Name, Input: valid([]byte(item.Arguments.OfString))})
		}
	}
	switch {
	case r.IncompleteDetails.Reason == "max_output_tokens":
		a.Stop = StopLength
	case r.IncompleteDetails.Reason == "content_filter":
		a.Stop = StopRefused
	case len(a.Message.Calls) > 0:
		a.Stop = StopTools
	}
	var err error
	if len(native) > 0 {
		a.Message.Native, err = json.Marshal(native)
	}
	return a, err
}

// openaiFailure has methods of an *openai.Error. A use of that type would link all of the SDK
// (13 MB).
type openaiFailure interface {
	error
	RawJSON() string
	DumpResponse(body bool) []byte
}

func openaiError(err error) *APIError {
	if e, ok := errors.AsType[openaiFailure](err); ok {
		var said struct{ Code, Type, Message string }
		_ = json.Unmarshal([]byte(e.RawJSON()), &said) // else it says nothing
		return &APIError{Kind: cmp.Or(said.Code, said.Type), Text: cmp.Or(said.Message, e.RawJSON())}
	}
	e, ok := errors.AsType[*ssestream.StreamError](err)
	if !ok {
		return lost(err)
	}
	var said struct {
		Code, Message string
		Error         struct{ Code, Type, Message string }
	}
	_ = json.Unmarshal(e.Event.Data, &said) // else it says nothing
	return &APIError{Status: 200, Kind: cmp.Or(said.Error.Code, said.Error.Type, said.Code), Text: cmp.Or(said.Error.Message, said.Message, e.Message)}
}

func (p *openaiAPI) params(req Request) (responses.ResponseNewParams, error) {
	params := responses.ResponseNewParams{
		Model: req.Model, Instructions: param.NewOpt(req.System), MaxOutputTokens: param.NewOpt(req.MaxOutput), Store: param.NewOpt(false),
	}
	if reasons().MatchString(req.Model) {
		params.Include = []responses.ResponseIncludable{responses.ResponseIncludableReasoningEncryptedContent}
	}
	for _, t := range req.Tools {
		tool, err := openaiTool(t)
		if err != nil {
			return params, err
		}
		params.Tools = append(params.Tools, tool)
	}
	var items responses.ResponseInputParam
	for _, m := range req.Messages {
		var native []json.RawMessage
		if m.Native != nil {
			if err := json.Unmarshal(m.Native, &native); err != nil {
				return params, err
			}
		}
		for _, item := range native {
			items = append(items, param.Override[responses.ResponseInputItemUnionParam](item))
		}
		for _, r := range m.Results {
			item := responses.ResponseInputItemParamOfFunctionCallOutput(r.Text)
			item.OfFunctionCallOutput.CallID = param.NewOpt(r.ID)
			if r.Image != nil {
				item.OfFunctionCallOutput.Output = openaiImage(r)
			}
			items = append(items, item)
		}
		if m.Text != "" && !m.Model {
			items = append(items, responses.ResponseInputItemParamOfMessage(m.Text, responses.EasyInputMessageRoleUser))
		}
	}
	params.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: items}
	return params, nil
}

// openaiImage is a result's text and image.
func openaiImage(r ToolResult) responses.ResponseInputItemFunctionCallOutputOutputUnionParam {
	url := "data:" + r.Image.MIME + ";base64," + base64.StdEncoding.EncodeToString(r.Image.Data)
	return responses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfResponseFunctionCallOutputItemArray: responses.ResponseFunctionCallOutputItemListParam{
		{OfInputText: &responses.ResponseInputTextContentParam{Text: r.Text}},
		{OfInputImage: &responses.ResponseInputImageContentParam{ImageURL: param.NewOpt(url)}},
	}}
}

func openaiTool(t tools.Tool) (responses.ToolUnionParam, error) {
	var parameters map[string]any
	if err := json.Unmarshal(schema(t), &parameters); err != nil {
		return responses.ToolUnionParam{}, err
	}
	return responses.ToolUnionParam{OfFunction: &responses.FunctionToolParam{
		Name: t.Name, Description: param.NewOpt(t.Description), Parameters: parameters, Strict: param.NewOpt(false),
	}}, nil
}
