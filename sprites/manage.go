package sprites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Create makes a new sprite. A name that exists is ErrNameTaken.
func (c *Client) Create(ctx context.Context, req CreateRequest) (Info, error) {
	var info Info
	err := c.Call(ctx, Request{Method: http.MethodPost, Path: Path("v1", "sprites"), JSON: req}, &info)
	if e, ok := errors.AsType[*Error](err); ok && nameTaken(e) {
		e.Code = "name_taken"
	}
	if err != nil {
		return Info{}, fmt.Errorf("create sprite %s: %w", req.Name, err)
	}
	if info.Name == "" { // some servers say no more than 201
		info.Name = req.Name
	}
	return info, nil
}

// nameTaken reports whether a failed create says that the name exists. Servers
// do not agree on the status; some send no code.
func nameTaken(e *Error) bool {
	if e.Code != "" {
		return false
	}
	switch e.StatusCode {
	case http.StatusConflict:
		return true
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		text := strings.ToLower(e.Message)
		return strings.Contains(text, "taken") || strings.Contains(text, "already exists")
	}
	return false
}

// Get describes a sprite. It does not wake it.
func (c *Client) Get(ctx context.Context, name string) (Info, error) {
	var info Info
	var header http.Header
	if err := c.Call(ctx, Request{Method: http.MethodGet, Path: Path("v1", "sprites", name), Answered: keepHeader(&header)}, &info); err != nil {
		return Info{}, fmt.Errorf("get sprite %s: %w", name, err)
	}
	info.Revision = header.Get("ETag")
	return info, nil
}

// Update changes a sprite's settings; what req leaves nil is kept.
func (c *Client) Update(ctx context.Context, name string, req UpdateRequest) (Info, error) {
	var info Info
	put := Request{Method: http.MethodPut, Path: Path("v1", "sprites", name), JSON: req}
	if req.Revision != "" {
		put.Header = http.Header{"If-Match": {req.Revision}}
	}
	if err := c.Call(ctx, put, &info); err != nil {
		return Info{}, fmt.Errorf("update sprite %s: %w", name, err)
	}
	return info, nil
}

// Change is Update with what change makes of the sprite as it is. If somebody else has
// changed the sprite's labels or Retention meanwhile, change is called again with theirs,
// so neither change is lost. On a server that tells no revisions, one of them may be
// lost. An error of change is returned as it is, and nothing is changed.
func (c *Client) Change(ctx context.Context, name string, change func(Info) (UpdateRequest, error)) (Info, error) {
	for try := 1; ; try++ {
		was, err := c.Get(ctx, name)
		if err != nil {
			return Info{}, err
		}
		req, err := change(was)
		if err != nil {
			return Info{}, err
		}
		req.Revision = was.Revision
		info, err := c.Update(ctx, name, req)
		if e, ok := errors.AsType[*Error](err); ok && e.StatusCode == http.StatusPreconditionFailed && try < changeTries {
			continue
		}
		return info, err
	}
}

// Visit makes a link that lets a browser, which can't send a token, enter the URL of a
// sprite that is not public. Only cove servers have it.
func (c *Client) Visit(ctx context.Context, name string, req VisitRequest) (Visit, error) {
	var v Visit
	if err := c.Call(ctx, Request{Method: http.MethodPost, Path: Path("v1", "sprites", name, "visit"), JSON: req}, &v); err != nil {
		return Visit{}, fmt.Errorf("link to sprite %s: %w", name, err)
	}
	return v, nil
}

// Restart ends all that runs in a sprite. Its disk stays; a cove server starts it
// again with its next use.
func (c *Client) Restart(ctx context.Context, name string) (RestartResult, error) {
	var result RestartResult
	err := c.Call(ctx, Request{Method: http.MethodPost, Path: Path("v1", "sprites", name, "restart")}, &result)
	if err != nil {
		return RestartResult{}, fmt.Errorf("restart sprite %s: %w", name, err)
	}
	return result, nil
}

// Upgrade moves a sprite to the newest version of what it runs in, which ends all
// that runs in it. Its disk stays.
func (c *Client) Upgrade(ctx context.Context, name string) error {
	if err := c.Call(ctx, Request{Method: http.MethodPost, Path: Path("v1", "sprites", name, "upgrade")}, nil); err != nil {
		return fmt.Errorf("upgrade sprite %s: %w", name, err)
	}
	return nil
}

// DeleteOptions are cove's additions to a delete.
type DeleteOptions struct {
	Force bool // also if that loses work that nobody has pulled, or something that is needed
}

// Delete destroys a sprite and its disk.
func (c *Client) Delete(ctx context.Context, name string, opts DeleteOptions) error {
	query := url.Values{}
	if opts.Force {
		query.Set("force", "true")
	}
	if err := c.Call(ctx, Request{Method: http.MethodDelete, Path: Path("v1", "sprites", name), Query: query}, nil); err != nil {
		return fmt.Errorf("delete sprite %s: %w", name, err)
	}
	return nil
}

// MaxPage is the most sprites that a server gives at once. Some give 50.
const MaxPage = 100

// ListOptions select sprites for List. The zero value is the first page of all.
type ListOptions struct {
	Prefix     string // of the name
	Label      string // one that they have; empty: any
	State      string // "running", "warm", "cold"; on a cove server also "held": those that may not run now. Empty: any
	Text       string // on a cove server: that stands in the name or a label
	MaxResults int    // of a page; 0: the server's default; it may give less
	Token      string // ListResponse.NextToken of the page before
}

// List returns one page of the sprites.
func (c *Client) List(ctx context.Context, opts ListOptions) (ListResponse, error) {
	query := url.Values{}
	if opts.Prefix != "" {
		query.Set("prefix", opts.Prefix)
	}
	for name, value := range map[string]string{"label": opts.Label, "state": opts.State, "q": opts.Text} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if opts.MaxResults > 0 {
		query.Set("max_results", strconv.Itoa(opts.MaxResults))
	}
	if opts.Token != "" {
		query.Set("continuation_token", opts.Token)
	}
	var page ListResponse
	if err := c.Call(ctx, Request{Method: http.MethodGet, Path: Path("v1", "sprites"), Query: query}, &page); err != nil {
		return ListResponse{}, fmt.Errorf("list sprites: %w", err)
	}
	return page, nil
}

// All yields the sprites whose names begin with prefix, page after page. An error
// is yielded once, as the last.
func (c *Client) All(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		opts := ListOptions{Prefix: prefix, MaxResults: MaxPage}
		seen := map[string]bool{}
		for {
			page, err := c.List(ctx, opts)
			if err != nil {
				yield(Info{}, err)
				return
			}
			for _, info := range page.Sprites {
				if !yield(info, nil) {
					return
				}
			}
			if !page.HasMore || page.NextToken == nil || *page.NextToken == "" {
				return
			}
			opts.Token = *page.NextToken
			if seen[opts.Token] {
				yield(Info{}, errors.New("list sprites: the server gave the same page twice"))
				return
			}
			seen[opts.Token] = true
		}
	}
}

// Watch yields the state of each sprite whose name begins with prefix, and then each
// change as it comes. Heartbeats come in between; the first one says that all of the
// sprites have been named. It ends when the caller or the server ends it. If the server
// says that it ends, there is no error. An error is yielded once, as the last. Watch
// does not reconnect. If the server can't watch, the error is errors.ErrUnsupported.
func (c *Client) Watch(ctx context.Context, prefix string) iter.Seq2[StateEvent, error] {
	query := url.Values{}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	watches := func(resp *http.Response) error {
		if !strings.HasPrefix(resp.Header.Get("Content-Type"), ndjson) {
			return errors.ErrUnsupported // a list, once
		}
		return nil
	}
	return func(yield func(StateEvent, error) bool) {
		for line, err := range c.Lines(ctx, Request{Method: http.MethodGet, Path: Path("v1", "sprites"), Query: query, Answered: watches}) {
			var e StateEvent
			if err == nil {
				if err = json.Unmarshal(line, &e); err != nil {
					err = fmt.Errorf("read an event: %w", err)
				}
			}
			if e, ok := errors.AsType[*Error](err); ok && e.StatusCode == http.StatusNotAcceptable {
				err = errors.ErrUnsupported
			}
			if err != nil {
				yield(StateEvent{}, fmt.Errorf("watch sprites: %w", err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}
