package server_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/openapi"
	"github.com/cove-dev/cove/sprites"
)

var update = flag.Bool("update", false, "write openapi.json anew")

const apiText = `Everything that the command cove does, it does by this API. ` +
	`The owner's token is in the file token of the server's data folder; cove token create makes others, with fewer rights. ` +
	`Send it as Authorization: Bearer TOKEN. Each operation names the verb that a token needs, as x-cove-verb. ` +
	`Times are RFC 3339, in UTC. Durations in a query are such as 30s or 5m. ` +
	`An error has a code for programs (error), a message, and often a hint: what to type next. ` +
	`GET /v1/ws has most calls about jobs over one WebSocket, with notifications. ` +
	`A JSON body with a field that is not known, or of another type, is refused with the status 400 and the name of the field. ` +
	`A call about a sprite wakes it if it has to; no call about jobs does, but for the diff of one whose sprite sleeps.`

// document is the input that the description is made of.
func document() openapi.Document {
	of := reflect.TypeOf
	return openapi.Document{
		Title: "cove", Description: apiText, Operations: operations(), Verbs: server.RouteVerbs(),
		Params: map[string]string{
			"name": "The sprite's name.", "secret": "The secret's name.", "connector": "The connector's name.", "webhook": "The webhook's name.", "session": "The id of the browser's session.", "environment": "The environment's id.", "profile": "The profile's name.", "backend": "The name of the server elsewhere.", "rest": "A path there. It may have slashes.",
			"service": "The service's name.", "checkpoint": "The checkpoint's ID, such as v3.", "image": "A name or a digest. It may have slashes.",
			"tokens id": "The token's ID.", "jobs id": "The job's ID: six hexadecimal digits.", "exec id": "The session's ID.",
		},
		Names: map[reflect.Type]string{
			of(sprites.Info{}): "Sprite", of(sprites.Details{}): "SpriteDetails", of(sprites.Config{}): "SpriteConfig", of(sprites.Message{}): "ExecMessage",
			of(fileTransfer{}): "FileTransfer", of(fileRenamed{}): "FileRenamed", of(fileCopy{}): "FileCopy", of(fileCopied{}): "FileCopied", of(fileNamed{}): "FileNamed",
			of(fileDeleted{}): "FileDeleted", of(fileChmod{}): "FileChmod", of(fileChmodded{}): "FileChmodded", of(fileChown{}): "FileChown", of(fileChowned{}): "FileChowned",
			of(execKill{}): "ExecKill", of(policyAnswer{}): "NetworkPolicyAnswer",
		},
		Required: map[reflect.Type][]string{
			of(sprites.CreateRequest{}): {"name"}, of(sprites.NetworkPolicy{}): {"rules"}, of(sprites.ServiceSignal{}): {"name", "signal"},
			of(cove.Webhook{}): {"url", "events"}, of(cove.TokenRequest{}): {"name", "scope", "verbs"}, of(cove.SecretRequest{}): {"value"}, of(cove.BackendRequest{}): {"url"},
			of(cove.ImagePull{}): {"reference"}, of(cove.ImageSave{}): {"images"}, of(cove.ImageTag{}): {"image", "name"}, of(cove.ImagePush{}): {"image"}, of(cove.ImageCommit{}): {"sprite", "name"},
			of(cove.JobRequest{}): {"plan"}, of(cove.JobAnswer{}): {"question", "option"}, of(cove.JobResume{}): {"message"},
			of(fileTransfer{}): {"source", "dest"}, of(fileCopy{}): {"source", "dest"}, of(fileChmod{}): {"path", "mode"}, of(fileChown{}): {"path"},
		},
		Webhooks: map[string]any{"event": cove.WebhookEvent{}}, Error: sprites.ErrorBody{}, FileError: sprites.FileError{}, Codes: fail.Statuses(),
		Sources: []string{"../..", "../../sprites"},
	}
}

// TestOpenAPI: each route has its entry, and each entry its route. The server gives out the
// description that is made of them.
func TestOpenAPI(t *testing.T) {
	ops, verbs := operations(), server.RouteVerbs()
	for pattern := range verbs {
		if _, ok := ops[pattern]; !ok {
			t.Errorf("%s has no entry in apitable_test.go", pattern)
		}
	}
	for pattern := range ops {
		if _, ok := verbs[pattern]; !ok {
			t.Errorf("apitable_test.go describes %s, which is no route", pattern)
		}
	}
	made, err := document().Make()
	must(t, err)
	text, err := json.MarshalIndent(made, "", " ")
	must(t, err)
	text = append(text, '\n')
	checkDocument(t, text)
	if *update {
		must(t, os.WriteFile("openapi.json", text, 0o644))
		return
	}
	got := ask(t, covetest.Start(t, covetest.Options{}), "GET /v1/openapi.json", "")
	failIf(t, !bytes.Equal(got.body, text), "openapi.json is not what the routes and types make; write it anew: go test ./internal/server -run TestOpenAPI -update")
}

// checkDocument checks that all references lead somewhere, and that no two operations have the
// same ID.
func checkDocument(t *testing.T, text []byte) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
		Components map[string]map[string]any `json:"components"`
	}
	must(t, json.Unmarshal(text, &doc))
	ids := map[string]string{}
	for path, item := range doc.Paths {
		for method, op := range item {
			failIf(t, op.OperationID == "" || ids[op.OperationID] != "", "%s %s has the ID %q, as %s", method, path, op.OperationID, ids[op.OperationID])
			ids[op.OperationID] = method + " " + path
		}
	}
	for _, ref := range regexp.MustCompile(`"\$ref": "([^"]*)"`).FindAllSubmatch(text, -1) {
		kind, name, _ := strings.Cut(strings.TrimPrefix(string(ref[1]), "#/components/"), "/")
		failIf(t, doc.Components[kind][name] == nil, "%s leads nowhere", ref[1])
	}
	failIf(t, len(ids) < 100, "only %d operations", len(ids))
}

// apiCheck compares the answers that tests get with the description.
type apiCheck struct {
	mux     *http.ServeMux
	sources map[string]string // the schemas, as JSON with all definitions aside, by pattern, status and kind
	defs    any

	mu       sync.Mutex
	problems []string
	seen     map[string]int                  // by pattern
	resolved map[string]*jsonschema.Resolved // by source: only what an answer needs, since each takes its time
}

// schema is what an answer must fit; nil: it is not described.
func (c *apiCheck) schema(key string) *jsonschema.Resolved {
	source := c.sources[key]
	if source == "" {
		return nil
	}
	r := c.resolved[source]
	if r != nil {
		return r
	}
	text, err := json.Marshal(map[string]any{"$defs": c.defs, "allOf": []any{json.RawMessage(source)}})
	var s jsonschema.Schema
	if err == nil {
		err = json.Unmarshal(bytes.ReplaceAll(text, []byte("#/components/schemas/"), []byte("#/$defs/")), &s)
	}
	if err == nil {
		r, err = s.Resolve(nil)
	}
	if err != nil {
		panic(fmt.Errorf("%s: %w", key, err))
	}
	c.resolved[source] = r
	return r
}

// described is the check of all tests. It is made with the first answer.
var described = sync.OnceValue(func() *apiCheck {
	c, err := newAPICheck()
	if err != nil {
		panic(err)
	}
	return c
})

// newAPICheck reads the schemas of a document. In answers no field may be unknown.
func newAPICheck() (*apiCheck, error) {
	made, err := document().Make()
	if err != nil {
		return nil, err
	}
	c := &apiCheck{mux: http.NewServeMux(), sources: map[string]string{}, seen: map[string]int{}, resolved: map[string]*jsonschema.Resolved{}}
	get := func(v any, keys ...string) any {
		for _, key := range keys {
			m, _ := v.(map[string]any)
			v = m[key]
		}
		return v
	}
	defs := get(made, "components", "schemas")
	for _, schema := range defs.(map[string]any) {
		if s := schema.(map[string]any); s["properties"] != nil {
			s["additionalProperties"] = false
		}
	}
	c.defs = defs
	for pattern, op := range operations() {
		method, path, ok := strings.Cut(pattern, " ")
		c.mux.Handle(pattern, http.NotFoundHandler())
		if op.Skip != "" || !ok {
			continue
		}
		item := get(made, "paths", strings.ReplaceAll(path, "...}", "}"), strings.ToLower(method), "responses")
		for status, answer := range item.(map[string]any) {
			if ref, _ := get(answer, "$ref").(string); ref != "" {
				answer = get(made, "components", "responses", ref[strings.LastIndex(ref, "/")+1:])
			}
			for kind, content := range map[string]any{"application/json": get(answer, "content", "application/json"), openapi.NDJSON: get(answer, "content", openapi.NDJSON)} {
				if content == nil {
					continue
				}
				text, err := json.Marshal(get(content, "schema"))
				if err != nil {
					return nil, fmt.Errorf("%s %s: %w", pattern, status, err)
				}
				c.sources[pattern+" "+status+" "+kind] = string(text)
			}
		}
	}
	return c, nil
}

// around makes requests as base does, and checks each answer once it has been read.
func (c *apiCheck) around(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(r)
		if err != nil || !strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/v1/sprites/evil/") || resp.Header.Get("Sprite-Version") == "" {
			return resp, err // of another server, of a service in a sprite, or of a guest that lies
		}
		kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		_, pattern := c.mux.Handler(r)
		if kind != "application/json" && kind != openapi.NDJSON || pattern == "" || !strings.Contains(pattern, " ") {
			return resp, nil
		}
		resp.Body = &checkedBody{ReadCloser: resp.Body, end: func(text []byte) { c.check(pattern, kind, resp.StatusCode, text, r.Header.Get("Accept")) }}
		return resp, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// checkedBody keeps everything that is read, for end.
type checkedBody struct {
	io.ReadCloser
	text bytes.Buffer
	end  func([]byte)
	once sync.Once
}

func (b *checkedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.text.Write(p[:n])
	if err == io.EOF {
		b.once.Do(func() { b.end(b.text.Bytes()) })
	}
	return n, err
}

func (c *apiCheck) check(pattern, kind string, status int, text []byte, accept string) {
	if pattern == "GET /v1/openapi.json" || strings.HasSuffix(accept, "text/plain") {
		return // described in words
	}
	key := fmt.Sprintf("%s %d %s", pattern, status, kind)
	if status >= 400 {
		key = fmt.Sprintf("%s %dXX %s", pattern, status/100, kind)
	}
	documents := [][]byte{text}
	if kind == openapi.NDJSON {
		documents = bytes.Split(text, []byte("\n"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	schema := c.schema(key)
	if schema == nil {
		c.problems = append(c.problems, fmt.Sprintf("%s: the description has no answer %d of %s", pattern, status, kind))
		return
	}
	for _, doc := range documents {
		var v any
		if len(bytes.TrimSpace(doc)) == 0 || json.Unmarshal(doc, &v) != nil {
			continue // an empty line, or one that the test's server was made to cut
		}
		c.seen[pattern]++
		if err := schema.Validate(v); err != nil {
			c.problems = append(c.problems, fmt.Sprintf("%s: an answer %d does not fit the description: %v\n%.2000s", pattern, status, err, doc))
		}
	}
}

// TestMain has every answer that a test gets compared with the description.
func TestMain(m *testing.M) {
	flag.Parse()
	http.DefaultTransport = described().around(http.DefaultTransport)
	plain.Transport = described().around(plain.Transport)
	code := m.Run()
	c := described()
	c.mu.Lock()
	slices.Sort(c.problems)
	for _, problem := range slices.Compact(c.problems) {
		fmt.Fprintln(os.Stderr, problem)
		code = max(code, 1)
	}
	if run := flag.Lookup("test.run"); code == 0 && run.Value.String() == "" && len(c.seen) < 60 {
		fmt.Fprintf(os.Stderr, "only %d operations had an answer that was compared with the description\n", len(c.seen))
		code = 1
	}
	os.Exit(code)
}

// TestUnknownField: each route with a JSON body refuses a body that is not JSON, or that has
// an unknown field or one of another type. The error names the field.
func TestUnknownField(t *testing.T) {
	s := covetest.Start(t, covetest.Options{
		Jobs: func(st *store.Store, c *cove.Client) (server.Jobs, func() error, error) {
			m := &job.Manager{Store: st, Client: c}
			return m, m.Close, m.Resume(t.Context())
		},
		Configure: func(s *server.Server) {
			images, err := image.New(image.Options{Dir: filepath.Join(s.Dir, "oci"), Store: s.Store.Images})
			must(t, err)
			s.Images = images
		},
	})
	cmd := s.Create("paint").Command("sleep", "1000")
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Detach() })
	seen := 0
	for pattern, op := range operations() {
		if op.Request == nil && pattern != "POST /v1/images/build" || strings.HasSuffix(pattern, " /mcp") {
			continue // MCP has its own protocol
		}
		seen++
		what := strings.NewReplacer("{name}", "paint", "exec/{id}", "exec/"+cmd.SessionID(), "{id}", "abcdef", "{checkpoint}", "v1").Replace(pattern)
		what = regexp.MustCompile(`\{[a-z.]+\}`).ReplaceAllString(what, "some")
		bodies := map[string]string{`{"moonbeam":1}`: `"moonbeam`, `{"a`: "", `[]`: "object", `{} {}`: "follows"}
		if typ := reflect.TypeOf(op.Request); typ != nil {
			field, _, _ := strings.Cut(firstField(typ).Tag.Get("json"), ",")
			bodies[`{"`+field+`":[{}]}`] = field
		}
		for body, want := range bodies {
			a := ask(t, s, what, body)
			failIf(t, a.StatusCode != 400 || !strings.Contains(string(a.body), strings.Trim(want, `"`)), "%s with %s: %d %s", what, body, a.StatusCode, a.body)
		}
	}
	failIf(t, seen < 35, "only %d routes have a body", seen)
	// Only the protocol's own exceptions are accepted.
	ask(t, s, "POST /v1/sprites", `{"name":"new","config":{"moonbeam":1},"cnofig":{}}`).refused(t, 400, "bad_request")
	ask(t, s, "POST /v1/sprites/paint/checkpoint", `{"id":"v9","commnet":"x"}`).refused(t, 400, "bad_request")
}

// firstField is the first field of a struct whose JSON is not an array.
func firstField(t reflect.Type) reflect.StructField {
	for f := range t.Fields() {
		switch {
		case f.Anonymous:
			return firstField(f.Type)
		case f.Type.Kind() != reflect.Slice && f.Type.Kind() != reflect.Interface && f.Tag.Get("json") != "-":
			return f
		}
	}
	return t.Field(0)
}
