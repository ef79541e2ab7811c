// Package forge opens pull requests at the servers of repositories, and reads their issues:
// GitHub, GitLab and Gitea.
// It speaks for the server, by a connector's definition with its secrets, so that no sandbox
// has the right to. All that such a server answers is taken for text of others.
//
// Sources: GitHub's REST API, "Pulls" (POST /repos/OWNER/NAME/pulls) and "Issues" (GET
// /repos/OWNER/NAME/issues/N), as Gitea's; GitLab's REST API,
// "Merge requests" (POST /projects/ID/merge_requests, ID being the path, escaped); Gitea's
// API, "repository" (POST /repos/OWNER/NAME/pulls).
package forge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/shim/connect"
)

// The kinds of forges.
const (
	GitHub = "github"
	GitLab = "gitlab"
	Gitea  = "gitea"
)

// Forge is one server of repositories, as its API is reached.
type Forge struct {
	Kind string           // one of the kinds
	API  connect.Upstream // of the API's root, such as https://git.example.org/api/v4
}

// PullRequest asks for a branch to be merged into another of the same repository.
type PullRequest struct {
	Repository  string // its path, such as /team/project.git
	Head, Base  string // branches
	Title, Body string
}

// Bounds of a call.
const (
	callLimit = time.Minute
	maxAnswer = 4 << 20
	maxSaid   = 300
	maxURL    = 1000
)

// client follows no redirect: the next server would get the secret.
var client = &http.Client{
	Timeout:       callLimit,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Open opens a pull request, or finds the one that is open for these branches. It returns its
// page's URL, which is empty if the forge names none that can be one.
func (f *Forge) Open(ctx context.Context, pr PullRequest) (page string, err error) {
	name := strings.TrimSuffix(strings.Trim(pr.Repository, "/"), ".git")
	owner, _, _ := strings.Cut(name, "/")
	var path string
	var body map[string]string
	query := url.Values{}
	find := ""
	switch f.Kind {
	case GitHub, Gitea:
		path = "/repos/" + name + "/pulls"
		body = map[string]string{"title": pr.Title, "body": pr.Body, "head": pr.Head, "base": pr.Base}
		if find = path; f.Kind == Gitea {
			find += "/" + url.PathEscape(pr.Base) + "/" + url.PathEscape(pr.Head)
		} else {
			query = url.Values{"state": {"open"}, "head": {owner + ":" + pr.Head}, "base": {pr.Base}}
		}
	case GitLab:
		path = "/projects/" + url.PathEscape(name) + "/merge_requests"
		body = map[string]string{"title": pr.Title, "description": pr.Body, "source_branch": pr.Head, "target_branch": pr.Base}
		find, query = path, url.Values{"state": {"opened"}, "source_branch": {pr.Head}, "target_branch": {pr.Base}}
	default:
		return "", fmt.Errorf("%.40q is not a kind of forge", f.Kind)
	}
	doc, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	status, answer, err := f.call(ctx, http.MethodPost, path, nil, doc)
	if err != nil {
		return "", err
	}
	switch status {
	case http.StatusCreated, http.StatusOK:
		return f.pageOf(answer), nil
	case http.StatusConflict, http.StatusUnprocessableEntity: // there is one already, perhaps
		again, list, err := f.call(ctx, http.MethodGet, find, query, nil)
		if page := f.pageOf(list); err == nil && again == http.StatusOK && page != "" {
			return page, nil
		}
	}
	return "", fmt.Errorf("the forge refuses the pull request (%d): %s", status, f.said(answer))
}

// Issue is an issue of a repository. All of its text is from others, and can't be trusted.
type Issue struct{ Title, Text string }

// maxIssue bounds an issue's text, in bytes.
const maxIssue = 64 << 10

// Issue reads an issue of a repository, given by its path.
func (f *Forge) Issue(ctx context.Context, repository string, number int) (Issue, error) {
	name := strings.TrimSuffix(strings.Trim(repository, "/"), ".git")
	path := fmt.Sprintf("/repos/%s/issues/%d", name, number)
	if f.Kind == GitLab {
		path = fmt.Sprintf("/projects/%s/issues/%d", url.PathEscape(name), number)
	}
	status, answer, err := f.call(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return Issue{}, err
	}
	if status != http.StatusOK {
		return Issue{}, fmt.Errorf("the forge does not show issue %d of %s (%d): %s", number, name, status, f.said(answer))
	}
	var doc struct {
		Title       string `json:"title"`
		Body        string `json:"body"`
		Description string `json:"description"` // GitLab's
	}
	if err := json.Unmarshal(answer, &doc); err != nil {
		return Issue{}, fmt.Errorf("the forge's answer about issue %d does not match its documentation", number)
	}
	text := f.hidden(cmp.Or(doc.Body, doc.Description))
	if len(text) > maxIssue {
		text = text[:maxIssue] + "\n(cut off)"
	}
	title, _, _ := strings.Cut(f.hidden(doc.Title), "\n")
	return Issue{Title: strings.ToValidUTF8(title[:min(len(title), maxSaid)], ""), Text: strings.ToValidUTF8(text, "")}, nil
}

// call makes a request of the API, if the connector lets it through.
func (f *Forge) call(ctx context.Context, method, path string, query url.Values, body []byte) (status int, answer []byte, err error) {
	plain, err := url.PathUnescape(path)
	if err != nil {
		return 0, nil, err
	}
	if why := cmp.Or(f.API.Refused, f.API.Allows(method, plain)); why != "" {
		return 0, nil, fmt.Errorf("the connector for the forge's API: %s", why)
	}
	to := strings.TrimSuffix(f.API.URL, "/") + path
	if len(query) > 0 {
		to += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "cove")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, values := range f.API.Header {
		req.Header[name] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, errors.New(f.hidden(err.Error()))
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(answer) > maxAnswer {
		err = errors.New("the forge's answer is too long")
	}
	return resp.StatusCode, answer, err
}

// pull is a forge's answer about a pull request.
type pull struct {
	HTMLURL string `json:"html_url"`
	WebURL  string `json:"web_url"`
}

// pageOf is the page of a pull request, or of the first one in a list.
func (f *Forge) pageOf(answer []byte) string {
	var one pull
	if err := json.Unmarshal(answer, &one); err != nil {
		var list []pull
		if err := json.Unmarshal(answer, &list); err != nil || len(list) == 0 {
			return ""
		}
		one = list[0]
	}
	page := cmp.Or(one.HTMLURL, one.WebURL)
	u, err := url.Parse(page)
	if err != nil || len(page) > maxURL || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || f.hidden(page) != page {
		return ""
	}
	return u.String()
}

// said is the text of a forge's error.
func (f *Forge) said(answer []byte) string {
	var doc struct {
		Message json.RawMessage `json:"message"`
		Error   json.RawMessage `json:"error"`
	}
	text := ""
	if err := json.Unmarshal(answer, &doc); err == nil {
		text = string(doc.Message) + string(doc.Error)
	}
	text = f.hidden(strings.ToValidUTF8(cmp.Or(text, "it does not say why"), "?"))
	if len(text) > maxSaid {
		text = strings.ToValidUTF8(text[:maxSaid], "") + "…"
	}
	return text
}

// hidden is a text without the connector's secrets.
func (f *Forge) hidden(text string) string {
	for _, secret := range f.API.Hidden {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}
