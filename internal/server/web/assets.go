package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed static
var static embed.FS

// policy is what the browser lets a page do. It loads only what this server gives, and no
// script or style that stands in the page itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// terminalPolicy is the one of pages with a terminal: xterm.js writes its styles into the page.
const terminalPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// protect sets the headers that all answers have.
func protect(h http.Header, r *http.Request) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()")
	h.Set("Cache-Control", "no-store")
	if secure(r) {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// asset is a static file, as it is sent.
type asset struct {
	kind   string
	plain  []byte
	packed []byte // compressed by gzip; nil: that would not be shorter
	digest string
}

// assets are the static files by name. They are compressed once, when the first is asked for.
var assets = sync.OnceValue(func() map[string]asset {
	all := map[string]asset{}
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := static.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		a := asset{kind: mime.TypeByExtension(path.Ext(name)), plain: b, digest: hex.EncodeToString(sum[:6])}
		switch path.Ext(name) {
		case ".js":
			a.kind = "text/javascript; charset=utf-8"
		case ".css":
			a.kind = "text/css; charset=utf-8"
		case ".svg":
			a.kind = "image/svg+xml"
		case ".LICENSE":
			a.kind = "text/plain; charset=utf-8"
		}
		var packed bytes.Buffer
		zw, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err := zw.Write(b); err != nil {
			return err
		}
		if err := zw.Close(); err != nil {
			return err
		}
		if packed.Len() < len(b) {
			a.packed = packed.Bytes()
		}
		all[strings.TrimPrefix(name, "static/")] = a
		return nil
	})
	if err != nil {
		panic(err) // the files are in the program
	}
	return all
})

// assetURL is where a browser gets a static file. It has the file's digest, so that it is asked
// for once.
func assetURL(name string) string { return "/web/static/" + name + "?v=" + assets()[name].digest }

func serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := assets()[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Vary", "Accept-Encoding")
	if r.URL.Query().Get("v") == a.digest {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	body := a.plain
	if a.packed != nil && acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = a.packed
	}
	_, _ = w.Write(body) // a browser that went away is nobody's error
}

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}
