package modeltest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Gemini is an http.Handler that plays a script by the Generative Language API (POST
// …/models/MODEL:generateContent and :streamGenerateContent). Set the exported fields
// before use.
type Gemini struct {
	Turns  []Turn
	Key    string    // required as x-goog-api-key, unless empty
	Status int       // answered to every request with an error body, unless 0
	Fails  []Failure // the answers to the first requests, before the script begins
	Aside  string    // the answer to a request without tools; empty: ok

	// Hold, unless nil, is called in the middle of each streamed answer, with the
	// number of the turn.
	Hold func(turn int)

	script script
}

// Requests returns the requests so far.
func (g *Gemini) Requests() []Request { return g.script.asked() }

// geminiBody is the part of a request that the server reads.
type geminiBody struct {
	System   json.RawMessage `json:"systemInstruction"`
	Contents []struct {
		Role  string          `json:"role"`
		Parts json.RawMessage `json:"parts"`
	} `json:"contents"`
	Tools []struct {
		FunctionDeclarations []struct{ Name string } `json:"functionDeclarations"`
	} `json:"tools"`
}

// ServeHTTP answers a model's methods, and an empty list of models to anything else.
func (g *Gemini) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, call, ok := strings.Cut(r.URL.Path, "/models/")
	model, method, _ := strings.Cut(call, ":")
	if r.Method != http.MethodPost || !ok || method == "" {
		answerJSON(w, http.StatusOK, object{"models": []string{}})
		return
	}
	var m geminiBody
	body, err := readBody(r, &m)
	if err != nil {
		geminiFail(w, http.StatusBadRequest, "", err.Error())
		return
	}
	req := Request{
		Path: r.URL.Path, Key: cmp.Or(r.Header.Get("X-Goog-Api-Key"), r.URL.Query().Get("key")), Auth: r.Header.Get("Authorization"),
		Model: model, System: string(m.System), Body: body,
	}
	for _, t := range m.Tools {
		for _, f := range t.FunctionDeclarations {
			req.Tools = append(req.Tools, f.Name)
		}
	}
	answered := 0
	for i, c := range m.Contents {
		if c.Role == "model" && (i == 0 || m.Contents[i-1].Role != "model") {
			answered++
		}
		req.Last = string(c.Parts)
	}
	f, failing := g.script.note(req, g.Fails)
	turn := turnOf(g.Turns, answered, len(req.Tools) > 0, g.Aside)
	switch {
	case g.Key != "" && req.Key != g.Key:
		geminiFail(w, http.StatusUnauthorized, "UNAUTHENTICATED", "API key not valid")
	case g.Status != 0:
		geminiFail(w, g.Status, "", "scripted")
	case failing:
		if f.begin(w, r) {
			f.gemini(w)
		}
	case method == "countTokens":
		answerJSON(w, http.StatusOK, object{"totalTokens": 100})
	case method == "streamGenerateContent":
		if len(req.Tools) == 0 || g.Hold == nil {
			turn.stream(w, model, answered, func(int) {})
		} else {
			turn.stream(w, model, answered, g.Hold)
		}
	default:
		answerJSON(w, http.StatusOK, turn.content(model, answered, turn.parts(answered), "STOP"))
	}
}

func geminiFail(w http.ResponseWriter, status int, kind, text string) {
	answerJSON(w, status, geminiError(status, kind, text))
}

func geminiError(status int, kind, text string) object {
	kinds := map[int]string{400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}
	return object{"error": object{"code": status, "message": text, "status": cmp.Or(kind, kinds[status], "UNKNOWN")}}
}

func (f Failure) gemini(w http.ResponseWriter) {
	if f.Status != http.StatusOK {
		geminiFail(w, f.Status, f.Kind, "scripted")
		return
	}
	newEvents(w).send("", geminiError(http.StatusServiceUnavailable, f.Kind, "scripted"))
}

// signature is a value that the API wants back with the call that it came with.
const signature = "c2lnbmF0dXJl"

// parts returns a turn's content.
func (t Turn) parts(turn int) []object {
	out := []object{}
	if t.Text != "" {
		out = append(out, object{"text": t.Text})
	}
	for i, c := range t.Calls {
		part := object{"functionCall": object{"id": fmt.Sprintf("fc_%03d%03d", turn, i), "name": c.Tool, "args": c.Input}}
		if i == 0 {
			part["thoughtSignature"] = signature
		}
		out = append(out, part)
	}
	return out
}

// content returns an answer, or a piece of one. The last piece has finish, the reason why
// it ends.
func (Turn) content(model string, turn int, parts []object, finish string) object {
	candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
	out := object{"responseId": fmt.Sprintf("resp-%03d", turn), "modelVersion": model, "candidates": []object{candidate}}
	if finish != "" {
		candidate["finishReason"] = finish
		out["usageMetadata"] = object{"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
	}
	return out
}

// stream sends the turn in pieces. The last piece is empty.
func (t Turn) stream(w http.ResponseWriter, model string, turn int, hold func(int)) {
	out := newEvents(w)
	for i, part := range t.parts(turn) {
		if i == 0 {
			hold(turn)
		}
		out.send("", t.content(model, turn, []object{part}, ""))
		if t.Cut {
			out.cut()
		}
	}
	out.send("", t.content(model, turn, []object{}, "STOP"))
}
