package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// redirections are headers by which some servers take a request for one of another
// path.
var redirections = []string{
	"X-Original-Url", "X-Original-Uri", "X-Rewrite-Url", "X-Override-Url", "X-Forwarded-Uri", "X-Forwarded-Path", "X-Forwarded-Prefix",
}

// drop takes headers out, also where they are written with an underscore, which many a
// program takes for a hyphen.
func drop(h http.Header, names []string) {
	for key := range h {
		if slices.Contains(names, http.CanonicalHeaderKey(strings.ReplaceAll(key, "_", "-"))) {
			delete(h, key)
		}
	}
}
