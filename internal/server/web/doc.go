// Package web is the web page of a cove server: templates, static files and the handlers that
// fill them. It is a client of the server's API, as others are: each request to it makes calls
// with the rights of the token by which its browser was logged in, and nothing else.
//
// A Site (site.go) has the table of pages (routes.go). A page's handler has a view (view.go): the
// request, whose it is, and a client of the API. It renders a template (render.go), or streams
// changes of what a page shows (live.go, and static/live.js in the browser).
//
// The files of templates/ have the pages, those of templates/components/ what pages consist of,
// which /web/components shows in all of their states. Everything that a sprite or an agent said
// is hostile: html/template escapes it, text.go takes its control characters away, and scripts
// are files of static/ only, never in a page's text (assets.go has the policy). What a sandbox answers is read in bounded
// room (heard.go). A page of a sprite says which one it shows (spriteshown.go), and which version
// of a file (spriteentry.go): nothing else is changed by it.
package web
