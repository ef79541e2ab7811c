// Package openapi makes an OpenAPI 3.1 document from a table of operations and the Go types of
// their bodies. Descriptions are the doc comments of the types, so it runs where the source is:
// in a test. The test keeps the document that a server gives out.
package openapi

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Operation describes a route. The zero value of a field leaves it out.
type Operation struct {
	Summary string // one line
	Details string // further facts that a caller must know

	Query   []Param
	Headers []Param // of the request

	Request     any    // a value of the body's type
	RequestType string // its media type; empty: JSON
	Optional    bool   // the body may be missing
	Lenient     string // the unknown fields that are accepted; empty: none

	Status     int // of success; 0: 200, or 204 without an answer
	Answer     any // a value of the answer's type; of a stream: of a line
	AnswerType string
	Also       any // another type that the answer may have
	Lines      any // a value of a line's type, if the answer may also be NDJSON

	AlsoVerbs []string // that a token needs besides the route's

	Upgrade *Socket // the route as a WebSocket, if it is one
	Only    bool    // only a WebSocket

	Skip string // why the route is not in the document
}

// The media types of streams and files.
const (
	NDJSON = "application/x-ndjson"
	Bytes  = "application/octet-stream"
)

// Socket describes the messages of a WebSocket.
type Socket struct {
	Details        string
	Client, Server any   // values of the types of text messages; nil: see Details
	Parts          []any // values of the types of their parts, which Details names

	Methods map[string]string // of requests, with the patterns of the routes that they stand for
}

// Param is a parameter of the query, or a header.
type Param struct {
	Name, Type, Description string // Type is of JSON Schema, or an array of it: "string[]"
	Required                bool
}

// Document has the parts that a document is made of.
type Document struct {
	Title, Description string
	Operations         map[string]Operation // by the pattern of net/http
	Verbs              map[string]string    // the verb that each route needs, by pattern; empty: any token
	Params             map[string]string    // of the path, by name; "PREFIX name" where a path has PREFIX
	Names              map[reflect.Type]string
	Required           map[reflect.Type][]string // fields of request bodies that must be there
	Webhooks           map[string]any            // the bodies of requests that the server makes
	Error, FileError   any                       // the bodies of errors, also below /fs/
	Codes              map[string]int            // the codes of errors, with their statuses
	Sources            []string                  // the folders of the types' packages
}

type object = map[string]any

// Make makes the document, ready for encoding/json.
func (d Document) Make() (map[string]any, error) {
	comments, err := readComments(d.Sources)
	if err != nil {
		return nil, err
	}
	m := &maker{doc: d, comments: comments, schemas: object{}, types: map[string]reflect.Type{}, asked: map[reflect.Type]bool{}}
	for _, op := range d.Operations {
		m.markAsked(reflect.TypeOf(op.Request))
	}
	m.schema(reflect.TypeOf(d.Error))
	paths := object{}
	for _, pattern := range slices.Sorted(maps.Keys(d.Operations)) {
		op := d.Operations[pattern]
		if op.Skip != "" {
			continue
		}
		method, path, ok := strings.Cut(pattern, " ")
		methods := []string{method}
		if !ok {
			path, methods = pattern, []string{"GET", "PUT", "POST", "DELETE"}
		}
		if op.Summary == "" {
			return nil, fmt.Errorf("%s has no summary", pattern)
		}
		path = strings.ReplaceAll(path, "...}", "}")
		item, _ := paths[path].(object)
		if item == nil {
			item = object{}
			paths[path] = item
		}
		for _, method := range methods {
			made, err := m.operation(method, path, pattern, op)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", pattern, err)
			}
			item[strings.ToLower(method)] = made
		}
	}
	if m.err != nil {
		return nil, m.err
	}
	hooks := object{}
	for name, v := range d.Webhooks {
		hooks[name] = object{"post": object{
			"summary":     "A delivery to a webhook",
			"requestBody": object{"content": object{"application/json": object{"schema": m.schema(reflect.TypeOf(v))}}},
			"responses":   object{"2XX": object{"description": "It is taken."}},
		}}
	}
	return object{
		"webhooks": hooks,
		"openapi":  "3.1.0",
		"info":     object{"title": d.Title, "version": "v1", "description": d.Description},
		"security": []any{object{"token": []any{}}},
		"paths":    paths,
		"components": object{
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
			"responses": object{
				"Error":     m.errorResponse(d.Error),
				"FileError": m.errorResponse(d.Error, d.FileError),
			},
			"schemas": m.schemas,
		},
	}, nil
}

func (m *maker) errorResponse(bodies ...any) object {
	byStatus := map[string][]string{}
	for code, status := range m.doc.Codes {
		byStatus[fmt.Sprint(status)] = append(byStatus[fmt.Sprint(status)], code)
	}
	for _, codes := range byStatus {
		slices.Sort(codes)
	}
	return object{
		"description":  "The call was refused, or failed. The body says why. x-cove-codes has the usual codes, by status.",
		"x-cove-codes": byStatus,
		"content":      object{"application/json": object{"schema": m.oneOf(bodies...)}},
	}
}

// maker makes one document.
type maker struct {
	doc      Document
	comments comments
	schemas  object
	types    map[string]reflect.Type // by the names of schemas
	asked    map[reflect.Type]bool   // that are in bodies of requests
	err      error
}

// markAsked marks a type, and the types within it, as used in a request.
func (m *maker) markAsked(t reflect.Type) {
	if t == nil || m.asked[t] {
		return
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array:
		m.markAsked(t.Elem())
	case reflect.Struct:
		m.asked[t] = true
		for f := range t.Fields() {
			m.markAsked(f.Type)
		}
	}
}

var pathParam = regexp.MustCompile(`\{([a-z]+)\}`)

func (m *maker) operation(method, path, pattern string, op Operation) (object, error) {
	verb := cmp.Or(m.doc.Verbs[pattern], "any")
	out := object{
		"operationId": operationID(method, path),
		"summary":     op.Summary,
		"tags":        []any{tag(path)},
		"x-cove-verb": verb,
	}
	details := []string{op.Details}
	if op.Upgrade != nil {
		details = append(details, op.Upgrade.Details)
		socket := object{}
		for side, v := range map[string]any{"client": op.Upgrade.Client, "server": op.Upgrade.Server} {
			if v != nil {
				socket[side] = m.schema(reflect.TypeOf(v))
			}
		}
		out["x-websocket-messages"] = socket
		for _, part := range op.Upgrade.Parts {
			m.schema(reflect.TypeOf(part))
		}
		if op.Upgrade.Methods != nil {
			out["x-websocket-methods"] = op.Upgrade.Methods
		}
	}
	switch {
	case op.AlsoVerbs != nil:
		verbs := append([]string{verb}, op.AlsoVerbs...)
		out["x-cove-verbs"] = verbs
		details = append(details, "Needs a token with the verbs "+strings.Join(verbs, " and ")+".")
	case verb != "any":
		details = append(details, "Needs a token with the verb "+verb+".")
	}
	if op.Lenient != "" {
		details = append(details, op.Lenient)
	}
	out["description"] = strings.TrimSpace(strings.Join(details, " "))

	var params []any
	for _, found := range pathParam.FindAllStringSubmatch(path, -1) {
		name := found[1]
		text := cmp.Or(m.doc.Params[tag(path)+" "+name], m.doc.Params[name])
		if text == "" {
			return nil, fmt.Errorf("the parameter %s has no description", name)
		}
		params = append(params, object{"name": name, "in": "path", "required": true, "description": text, "schema": object{"type": "string"}})
	}
	for in, list := range map[string][]Param{"query": op.Query, "header": op.Headers} {
		for _, p := range list {
			schema := object{"type": p.Type}
			if of, ok := strings.CutSuffix(p.Type, "[]"); ok {
				schema = object{"type": "array", "items": object{"type": of}}
			}
			made := object{"name": p.Name, "in": in, "description": p.Description, "schema": schema}
			if p.Required {
				made["required"] = true
			}
			params = append(params, made)
		}
	}
	if params != nil {
		slices.SortStableFunc(params, func(a, b any) int {
			return strings.Compare(a.(object)["in"].(string), b.(object)["in"].(string))
		})
		out["parameters"] = params
	}
	if op.Request != nil || op.RequestType != "" {
		out["requestBody"] = object{
			"required": !op.Optional,
			"content":  object{cmp.Or(op.RequestType, "application/json"): object{"schema": m.body(op.Request)}},
		}
	}
	out["responses"] = m.responses(path, op)
	return out, nil
}

func (m *maker) responses(path string, op Operation) object {
	failed := object{"$ref": "#/components/responses/Error"}
	if strings.Contains(path, "/fs/") {
		failed = object{"$ref": "#/components/responses/FileError"}
	}
	all := object{"4XX": failed, "5XX": failed}
	if op.Upgrade != nil {
		all["101"] = object{"description": "The WebSocket is open."}
	}
	switch {
	case op.Only:
	case op.Answer == nil && op.AnswerType == "":
		all[fmt.Sprint(cmp.Or(op.Status, 204))] = object{"description": "Done."}
	default:
		schema := m.body(op.Answer)
		if op.Also != nil {
			schema = m.oneOf(op.Answer, op.Also)
		}
		text := "Done."
		if op.AnswerType == NDJSON {
			text = "A stream of lines, each of which is one JSON document. Empty lines are signs of life."
		}
		content := object{cmp.Or(op.AnswerType, "application/json"): object{"schema": schema}}
		if op.Lines != nil {
			content[NDJSON] = object{"schema": m.body(op.Lines)}
			text = "Done. As " + NDJSON + " it is a stream of lines, each of which is one JSON document. Empty lines are signs of life."
		}
		all[fmt.Sprint(cmp.Or(op.Status, 200))] = object{"description": text, "content": content}
	}
	return all
}

// body returns the schema of a body; nil stands for bytes.
func (m *maker) body(v any) object {
	if v == nil {
		return object{"type": "string", "format": "binary"}
	}
	return m.schema(reflect.TypeOf(v))
}

func (m *maker) oneOf(values ...any) object {
	if len(values) == 1 {
		return m.body(values[0])
	}
	var all []any
	for _, v := range values {
		all = append(all, m.body(v))
	}
	return object{"anyOf": all}
}

// tag groups operations by the part of the path below /v1, or below a sprite.
func tag(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/v1"), "/")
	if len(parts) > 3 && parts[1] == "sprites" && parts[2] == "{name}" {
		switch of := parts[3]; of {
		case "exec", "fs", "services", "policy", "checkpoints":
			return of
		case "checkpoint":
			return "checkpoints"
		}
	}
	return parts[1]
}

var notWord = regexp.MustCompile(`[^A-Za-z]+`)

func operationID(method, path string) string {
	id := strings.ToLower(method)
	for _, word := range notWord.Split(strings.TrimPrefix(path, "/v1"), -1) {
		if word != "" {
			id += strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return id
}
