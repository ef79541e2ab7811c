package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// redirections are headers that make some servers take a request for one of another
// path.
var redirections = []string{
	"X-Original-Url", "X-Original-Uri", "X-Rewrite-Url", "X-Override-Url", "X-Forwarded-Uri", "X-Forwarded-Path", "X-Forwarded-Prefix",
}

// drop removes headers, also if they are written with an underscore: many programs
// take that for a hyphen.
func drop(h http.Header, names []string) {
	for key := range h {
		if slices.Contains(names, http.CanonicalHeaderKey(strings.ReplaceAll(key, "_", "-"))) {
			delete(h, key)
		}
	}
}
