// Package web is the web page of a cove server: templates, static files and the handlers that
// fill them. It is a client of the server's API, as others are. A request to it makes calls
// with the rights of the token that its browser was logged in by, and does nothing else.
//
// A Site (site.go) has the table of pages (routes.go). A page's handler has a view (view.go):
// the request, its session, and a client of the API. It renders a template (render.go), or
// streams changes of what a page shows (live.go, and static/live.js in the browser).
//
// The files of templates/ have the pages. Those of templates/components/ have the parts of
// pages, which /web/components shows in all of their states. Everything that a sprite or an
// agent said is hostile. html/template escapes it, and text.go takes its control characters
// away. Scripts are files of static/ only, never in a page's text (assets.go has the policy).
// A sandbox's answers are read in bounded room (heard.go). A page of a sprite says which
// sprite it shows (spriteshown.go), and which version of a file (spriteentry.go): it changes
// nothing else.
package web
