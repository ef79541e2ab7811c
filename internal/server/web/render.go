package web

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"sync"
	"time"
)

//go:embed templates
var templateFiles embed.FS

// templates are all of them, by the names that their files define. Names are unique.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(funcs).ParseFS(templateFiles, "templates/*.html", "templates/components/*.html"))
})

// funcs are the functions of templates.
var funcs = template.FuncMap{
	"asset":     assetURL,
	"line":      line,
	"text":      text,
	"markdown":  markdown,
	"asked":     inputParts,
	"whole":     wholeText,
	"wholeRow":  wholeRow,
	"wholeLine": wholeLine,
	"kind":      fileKind,
	"ago":       timeTag,
	"agoP":      func(t *time.Time) template.HTML { return timeTag(deref(t)) },
	"bytes":     formatBytes,
	"span":      formatDuration,
	"runs":      spanTag,
	"count":     count,
	"seconds":   func(n int64) string { return formatDuration(time.Duration(n) * time.Second) },
	"network":   profileNetwork,
	"list":      func(all ...any) []any { return all },
	"dict":      dict,
	"rule":      ruleText,
	"word":      word,
	"terminal":  inTerminal,
	"secrets":   inSecrets,
	"query":     url.QueryEscape, // html/template does not know that htmx's attributes are addresses
}

// dict makes a map of names and values, for a component that takes several.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict: %d arguments", len(pairs))
	}
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is not a name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

func deref(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// layout is the frame of a page.
type layout struct {
	rights
	Title    string
	Path     string // of the page, which is marked in the navigation
	Said     string // the sentence of the request before; empty: there is none
	Live     string // the stream that keeps it true
	Mark     string // of the session
	Sprite   string // the ID of the one that it shows; empty: none
	Who      string // the token's name; empty: the owner
	Bare     bool   // without navigation: nobody is logged in
	Terminal bool   // it has a terminal
	Script   string // of this page alone; empty: none
	Version  string
	Body     template.HTML // which render fills in
}

// render answers with a page.
func render(w http.ResponseWriter, r *http.Request, status int, l layout, name string, data any) {
	var body bytes.Buffer
	if err := templates().ExecuteTemplate(&body, name, data); err != nil {
		http.Error(w, "the page can't be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	l.Body = template.HTML(body.String()) //nolint:gosec // html/template made it
	if l.Terminal {
		w.Header().Set("Content-Security-Policy", terminalPolicy)
	}
	fragment(w, r, status, "layout", l)
}

// fragment answers with a part of a page.
func fragment(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var out bytes.Buffer
	if err := templates().ExecuteTemplate(&out, name, data); err != nil {
		http.Error(w, "the page can't be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Accept-Encoding, HX-Request")
	const worthwhile = 1 << 10
	if out.Len() < worthwhile || !acceptsGzip(r) {
		w.WriteHeader(status)
		_, _ = w.Write(out.Bytes()) // a browser that went away is nobody's error
		return
	}
	h.Set("Content-Encoding", "gzip")
	w.WriteHeader(status)
	zw := gzip.NewWriter(w)
	_, _ = zw.Write(out.Bytes())
	_ = zw.Close()
}

// html renders a template to a string, for a stream.
func html(name string, data any) (string, error) {
	var out bytes.Buffer
	err := templates().ExecuteTemplate(&out, name, data)
	return out.String(), err
}

// markup renders a template, to stand in another.
func markup(name string, data any) (template.HTML, error) {
	out, err := html(name, data)
	return template.HTML(out), err //nolint:gosec // html/template made it
}
