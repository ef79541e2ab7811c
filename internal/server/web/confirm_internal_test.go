package web

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// TestConfirms: a browser that was left alone neither makes a token nor writes over a file before
// its person has come by a link again. The API is not asked: there is none here.
func TestConfirms(t *testing.T) {
	for target, do := range map[string]handler{
		"/web/settings/tokens":                             makeToken,
		"/web/sprites/paint/files/upload?path=/a&over=yes": func(v *view) error { return spriteUpload(&spriteView{view: v}) },
	} {
		r := httptest.NewRequest("POST", target, strings.NewReader("name=mine&days=1&verb=admin&scope=all"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		err := do(&view{w: httptest.NewRecorder(), r: r})
		if err == nil || describe(err).Code != "confirm" {
			t.Errorf("%s: %v", target, err)
		}
	}
}
