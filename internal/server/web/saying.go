package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
)

const (
	maxSaying    = 300 // bytes of a sentence on what was done
	sayingKept   = 600 // seconds that the next page may show it within: the server may be away meanwhile
	sayingCookie = "cove_said"
)

// saying is what a request has done, in words.
type saying struct{ told string }

// say keeps one short sentence on what the request has done. A part of a page brings it to the
// live region "said". After a redirect, the next page shows it.
func (s *saying) say(format string, args ...any) {
	s.told = cut(line(fmt.Sprintf(format, args...)), maxSaying)
}

// hasSaid is the live region, as a script puts it into the page. If nothing was said, it is
// empty, so that an older sentence goes.
func (s *saying) hasSaid() template.HTML {
	text, _ := markup("said", s.told) // a component's test has shown it
	return `<div hx-swap-oob="innerHTML:#said">` + text + `</div>`
}

// sayChange is the live region, as a stream puts it into the page.
func (s *saying) sayChange() change {
	text, _ := html("said", s.told)
	return change{Target: "said", How: "inner", HTML: text}
}

// keepSaying keeps the sentence for the next page of this session.
func keepSaying(v *view) {
	if v.told == "" {
		return
	}
	b := base64.RawURLEncoding
	setSaying(v, b.EncodeToString([]byte(v.told))+"."+b.EncodeToString(v.session.seal(v.told)), sayingKept)
}

// nextSaying is the sentence of the request before, once. A sprite's page can set a cookie of
// that name, but can't seal it as this session does.
func nextSaying(v *view) string {
	for i, c := range v.r.CookiesNamed(sayingName(v.r)) {
		if i >= maxCookies {
			break
		}
		head, tail, _ := strings.Cut(c.Value, ".")
		text, err := base64.RawURLEncoding.DecodeString(head)
		mac, err2 := base64.RawURLEncoding.DecodeString(tail)
		if err == nil && err2 == nil && len(text) <= maxSaying && hmac.Equal(mac, v.session.seal(string(text))) {
			setSaying(v, "", -1)
			return string(text)
		}
	}
	return ""
}

func sayingName(r *http.Request) string {
	if secure(r) {
		return "__Host-" + sayingCookie
	}
	return sayingCookie
}

func setSaying(v *view, value string, maxAge int) {
	http.SetCookie(v.w, &http.Cookie{
		Name: sayingName(v.r), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: secure(v.r), SameSite: http.SameSiteStrictMode,
	})
}

// seal shows that this session has said a sentence.
func (s Session) seal(text string) []byte {
	mac := hmac.New(sha256.New, s.Key)
	mac.Write([]byte("said " + s.ID + " " + text))
	return mac.Sum(nil)
}
