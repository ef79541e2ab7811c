package fakeprovider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// public matches the calls of the public protocol.
var public = []*regexp.Regexp{
	regexp.MustCompile(`^(GET|POST) /v1/sprites$`),
	regexp.MustCompile(`^(GET|PUT|DELETE) /v1/sprites/[^/]+$`),
	regexp.MustCompile(`^(GET|POST) /v1/sprites/[^/]+/(exec|policy/network|checkpoints|services)$`),
	regexp.MustCompile(`^GET /v1/sprites/[^/]+/(exec/[^/]+|fs/read|fs/list|proxy|services/.*|checkpoints/[^/]+)$`),
	regexp.MustCompile(`^POST /v1/sprites/[^/]+/(exec/[^/]+/kill|fs/rename|fs/copy|fs/chmod|checkpoint|checkpoints/[^/]+/restore|services/.*)$`),
	regexp.MustCompile(`^PUT /v1/sprites/[^/]+/(fs/write|services/[^/]+)$`),
	regexp.MustCompile(`^DELETE /v1/sprites/[^/]+/(fs/delete|services/[^/]+|checkpoints/[^/]+)$`),
}

// ProtocolOnly passes on to a cove server only the public protocol (none of cove's own
// calls or fields). No cove-guest is found in a sprite. It is an error of the test if a
// caller sends one of cove's own fields.
func ProtocolOnly(t testing.TB, target *url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Host = target.Host
			p.Out.Header.Del("Accept-Encoding")
		},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del("Sprite-Version")
			if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") || strings.Count(resp.Request.URL.Path, "/") > 3 {
				return nil
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			body = withoutCove(body)
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			resp.Header.Set("Content-Length", fmt.Sprint(len(body)))
			return nil
		},
		// If the server fails in the middle, the connection is cut without an answer.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := r.Method + " " + r.URL.Path
		known := slices.ContainsFunc(public, func(re *regexp.Regexp) bool { return re.MatchString(call) })
		if !known || strings.HasPrefix(r.URL.Query().Get("path"), "/.sprite/bin/") {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		if err := onlyPublic(r); errors.Is(err, errCut) {
			panic(http.ErrAbortHandler)
		} else if err != nil {
			t.Errorf("%s: %v", call, err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// onlyPublic refuses a body with fields that are cove's own.
func onlyPublic(r *http.Request) error {
	var doc any
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/v1/sprites":
		doc = new(struct {
			Name        string          `json:"name"`
			URLSettings json.RawMessage `json:"url_settings"`
			Labels      []string        `json:"labels"`
			Config      json.RawMessage `json:"config"`
			Environment json.RawMessage `json:"environment"`
			WaitFor     bool            `json:"wait_for_capacity"`
		})
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/policy/network"):
		doc = new(struct {
			Rules []struct {
				Domain  string `json:"domain"`
				Action  string `json:"action"`
				Include string `json:"include"`
			} `json:"rules"`
		})
	default:
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	return dec.Decode(doc)
}

// withoutCove removes cove's own fields from descriptions of sprites.
func withoutCove(body []byte) []byte {
	var doc map[string]any
	if json.Unmarshal(body, &doc) != nil {
		return body
	}
	delete(doc, "cove")
	if list, ok := doc["sprites"].([]any); ok {
		for _, one := range list {
			if info, ok := one.(map[string]any); ok {
				delete(info, "cove")
			}
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return body
	}
	return out
}
