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
	sayingKept   = 600 // seconds for which the next page may show it: the server may be away meanwhile
	sayingCookie = "cove_said"
)

// saying is what a request has done, in words.
type saying struct{ told string }

// say keeps one short sentence on what the request has done. The answer has it: a part of a page brings it
// to the live region "said"; a redirect has the next page show it.
func (s *saying) say(format string, args ...any) {
	s.told = cut(line(fmt.Sprintf(format, args...)), maxSaying)
}

// hasSaid is the live region, as a script puts it into the page. It is empty if nothing was said: the sentence
// before is of something else.
func (s *saying) hasSaid() template.HTML {
	text, _ := markup("said", s.told) // a component's test has shown it
	return `<div hx-swap-oob="innerHTML:#said">` + text + `</div>`
}

// sayChange is the live region, as a stream puts it into the page.
func (s *saying) sayChange() change {
	text, _ := html("said", s.told)
	return change{Target: "said", How: "inner", HTML: text}
}

// keepSaying has the next page of this session say what was said.
func keepSaying(v *view) {
	if v.told == "" {
		return
	}
	b := base64.RawURLEncoding
	setSaying(v, b.EncodeToString([]byte(v.told))+"."+b.EncodeToString(v.session.seal(v.told)), sayingKept)
}

// nextSaying is what the request before has said, once. A sprite's page can set a cookie of the name, but not
// one that this session has sealed.
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
