package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genai"
)

// geminiAPI is the Generative Language API.
type geminiAPI struct{ client *genai.Client }

func newGemini(a Access) (Provider, error) {
	c, err := genai.NewClient(context.Background(), &genai.ClientConfig{
		Backend: genai.BackendGeminiAPI, APIKey: cmp.Or(a.Key, a.Token), HTTPClient: client(),
		HTTPOptions: genai.HTTPOptions{BaseURL: a.BaseURL, RetryOptions: &genai.HTTPRetryOptions{Attempts: new(int32(1))}},
	})
	if err != nil {
		return nil, err
	}
	return &geminiAPI{c}, nil
}

var geminiStops = map[genai.FinishReason]Stop{
	genai.FinishReasonStop: StopEnd, genai.FinishReasonMaxTokens: StopLength,
	genai.FinishReasonSafety: StopRefused, genai.FinishReasonRecitation: StopRefused, genai.FinishReasonBlocklist: StopRefused,
	genai.FinishReasonProhibitedContent: StopRefused, genai.FinishReasonSPII: StopRefused,
}

func (p *geminiAPI) Ask(ctx context.Context, req Request, heard func(Piece)) (Answer, error) {
	contents, config, err := p.params(req)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Message: Message{Model: true}}
	content := genai.Content{Role: genai.RoleModel}
	for r, err := range p.client.Models.GenerateContentStream(ctx, req.Model, contents, config) {
		if err != nil {
			return Answer{}, geminiError(err)
		}
		if u := r.UsageMetadata; u != nil {
			a.Usage = Usage{Input: int64(u.PromptTokenCount + u.ToolUsePromptTokenCount), Output: int64(u.CandidatesTokenCount + u.ThoughtsTokenCount)}
			heard(Piece{Usage: &a.Usage})
		}
		if f := r.PromptFeedback; f != nil && f.BlockReason != "" {
			a.Stop = StopRefused
		}
		if len(r.Candidates) == 0 {
			continue
		}
		c := r.Candidates[0]
		if c.Content != nil {
			for _, part := range c.Content.Parts {
				heard(a.Message.take(&content, part))
			}
		}
		if c.FinishReason != "" {
			a.Stop = cmp.Or(geminiStops[c.FinishReason], StopMalformed)
		}
	}
	if a.Stop == "" {
		return Answer{}, lost(causeOf(ctx, errCut))
	}
	if a.Stop == StopEnd && len(a.Message.Calls) > 0 {
		a.Stop = StopTools
	}
	if len(content.Parts) > 0 {
		a.Message.Native, err = json.Marshal(content)
	}
	return a, err
}

// ownID is the prefix of ids that we give to calls without one. The API must not get them
// back.
const ownID = "cove-"

// take adds a part to a message, and to content, which the API gets back. Pieces of text are
// joined; a part with a signature must stay unchanged.
func (m *Message) take(content *genai.Content, part *genai.Part) Piece {
	if part == nil || part.Thought {
		return Piece{}
	}
	switch call := part.FunctionCall; {
	case call != nil:
		input, err := json.Marshal(call.Args)
		if err != nil || call.Args == nil {
			input = []byte("{}")
		}
		id := cmp.Or(call.ID, fmt.Sprintf("%s%d", ownID, len(m.Calls)))
		m.Calls = append(m.Calls, Call{ID: id, Tool: call.Name, Input: input})
		content.Parts = append(content.Parts, part)
		return Piece{Bytes: len(input)}
	case part.Text != "":
		m.Text += part.Text
		if n := len(content.Parts); n > 0 && part.ThoughtSignature == nil && content.Parts[n-1].Text != "" && content.Parts[n-1].ThoughtSignature == nil {
			content.Parts[n-1].Text += part.Text
		} else {
			content.Parts = append(content.Parts, part)
		}
	case part.ThoughtSignature != nil:
		content.Parts = append(content.Parts, part)
	}
	return Piece{Text: part.Text, Bytes: len(part.Text)}
}

func geminiError(err error) *APIError {
	if e, ok := errors.AsType[genai.APIError](err); ok {
		return &APIError{Status: e.Code, Kind: e.Status, Text: e.Message}
	}
	return lost(err)
}

func (p *geminiAPI) params(req Request) ([]*genai.Content, *genai.GenerateContentConfig, error) {
	config := &genai.GenerateContentConfig{
		SystemInstruction: genai.NewContentFromText(req.System, genai.RoleUser), MaxOutputTokens: int32(min(req.MaxOutput, 1<<30)),
	}
	var functions []*genai.FunctionDeclaration
	for _, t := range req.Tools {
		functions = append(functions, &genai.FunctionDeclaration{Name: t.Name, Description: t.Description, ParametersJsonSchema: schema(t)})
	}
	if functions != nil {
		config.Tools = []*genai.Tool{{FunctionDeclarations: functions}}
	}
	var contents []*genai.Content
	for _, m := range req.Messages {
		if m.Native != nil {
			var c genai.Content
			if err := json.Unmarshal(m.Native, &c); err != nil {
				return nil, nil, err
			}
			contents = append(contents, &c)
			continue
		}
		c := &genai.Content{Role: genai.RoleUser}
		for _, r := range m.Results {
			key := "output"
			if r.Failed {
				key = "error"
			}
			answer := &genai.FunctionResponse{Name: r.Tool, Response: map[string]any{key: r.Text}}
			if !strings.HasPrefix(r.ID, ownID) {
				answer.ID = r.ID
			}
			c.Parts = append(c.Parts, &genai.Part{FunctionResponse: answer})
		}
		for _, r := range m.Results { // not all models take images within the answers
			if r.Image != nil {
				c.Parts = append(c.Parts, genai.NewPartFromBytes(r.Image.Data, r.Image.MIME))
			}
		}
		if m.Text != "" {
			c.Parts = append(c.Parts, genai.NewPartFromText(m.Text))
		}
		contents = append(contents, c)
	}
	return contents, config, nil
}
