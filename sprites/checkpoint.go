package sprites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Checkpoint is a state of a sprite's disk that it can go back to (protocol section
// 8.2). The one called Current is what the sprite is now.
type Checkpoint struct {
	ID         string    `json:"id"` // v1, v2, …; auto-… and pre-restore-… of those that nobody asked for
	CreateTime time.Time `json:"create_time"`
	SourceID   string    `json:"source_id,omitempty"` // what it grew from
	Comment    string    `json:"comment,omitempty"`
	History    []string  `json:"history,omitempty"` // what that grew from, and so on
	IsAuto     bool      `json:"is_auto,omitempty"`
	Health     string    `json:"health,omitempty"` // empty: it is whole

	Cove *CheckpointDetails `json:"cove,omitempty"` // of a cove server
}

// CheckpointDetails are what a cove server says of a checkpoint besides.
type CheckpointDetails struct {
	Labels            []string `json:"labels,omitempty"`
	PauseMilliseconds float64  `json:"pause_ms,omitempty"` // how long what ran stood still for it

	// CopiedBytes is how many bytes were copied in the pause. When their layer was
	// sealed, these files were open for writing, or still open since they were written.
	// The programs go on with the copies.
	CopiedBytes int64 `json:"copied_bytes"`

	MemoryBytes   int64  `json:"memory_bytes,omitempty"`    // of what was kept of its memory; 0: nothing was
	MemoryNotKept string `json:"memory_not_kept,omitempty"` // of one just made: why not, though it was to be

	// OpenFiles, of one just made, are those that made it slow: over OpenWritable or
	// OpenUnlinked bytes were open. nil: there were less.
	OpenFiles *OpenFiles `json:"open_files,omitempty"`

	*DiskUse // nil: not known yet
}

// DiskUse is what a sealed state of a disk takes of the server's, without its base.
// A file that was deleted or written anew later still counts; one that a merge has
// linked may count twice.
type DiskUse struct {
	SizeBytes  int64 `json:"size_bytes"`  // all of it
	OwnBytes   int64 `json:"own_bytes"`   // of that, what no other checkpoint and no sprite has
	AddedBytes int64 `json:"added_bytes"` // of that, what the checkpoint that it grew from has not
}

// CheckpointRequest is what a checkpoint is asked for with.
type CheckpointRequest struct {
	Comment string   `json:"comment,omitempty"`
	Labels  []string `json:"labels,omitempty"` // a cove server's

	// Memory has a cove server keep the memory of what runs, too: a restore and forks
	// go on from there. Empty is KeepNever.
	Memory KeepMemory `json:"memory,omitempty"`
}

// KeepMemory says whether a checkpoint keeps the memory of what runs.
type KeepMemory string

// The values of a KeepMemory. KeepAuto does not where more than OpenWritable or
// OpenUnlinked bytes are open: each restore and each fork would copy them first.
const (
	KeepNever  KeepMemory = "never"
	KeepAuto   KeepMemory = "auto"
	KeepAlways KeepMemory = "always"
)

// UnmarshalJSON also reads true, which is KeepAuto, and false.
func (k *KeepMemory) UnmarshalJSON(data []byte) error {
	var kept bool
	if json.Unmarshal(data, &kept) == nil {
		*k = KeepNever
		if kept {
			*k = KeepAuto
		}
		return nil
	}
	return json.Unmarshal(data, (*string)(k))
}

// More of files that are open for writing, or open and deleted, than this makes a
// checkpoint slow, and each restore with its memory.
const (
	OpenWritable = 256 << 20
	OpenUnlinked = 64 << 20
)

// OpenFiles are the files on a sprite's disk that a checkpoint has more work with than
// with others. Their names are the sprite's own.
type OpenFiles struct {
	WritableBytes int64      `json:"writable_bytes"` // of files that are open for writing
	Writable      []OpenFile `json:"writable,omitempty"`
	UnlinkedBytes int64      `json:"unlinked_bytes"` // of files that are open, and have no name any more
	Unlinked      []OpenFile `json:"unlinked,omitempty"`
}

// OpenFile is one of them.
type OpenFile struct {
	Path  string `json:"path"` // that it has, or had
	Bytes int64  `json:"bytes"`
}

// Excess returns the kinds of files that are above their bound (OpenWritable,
// OpenUnlinked); nil: neither is.
func (o OpenFiles) Excess() *OpenFiles {
	writable, unlinked := o.WritableBytes > OpenWritable, o.UnlinkedBytes > OpenUnlinked
	if !writable && !unlinked {
		return nil
	}
	if !writable {
		o.Writable = nil
	}
	if !unlinked {
		o.Unlinked = nil
	}
	return &o
}

// Restored says what a restore has done, on a cove server.
type Restored struct {
	Checkpoint string `json:"checkpoint"`       // that the sprite is now
	Replaced   string `json:"replaced"`         // the checkpoint of what it was
	Booted     bool   `json:"booted"`           // it was awake, and has been started from its disk
	Memory     bool   `json:"memory"`           // what ran then goes on
	Unused     string `json:"unused,omitempty"` // why it does not, though its memory was kept
}

// Retention says which checkpoints of a sprite stay: those that at least one rule
// names. The zero value has no rule.
type Retention struct {
	Last  int `json:"last,omitempty"`  // so many, the newest
	Daily int `json:"daily,omitempty"` // the newest of each of so many days (UTC) that have any
}

// PruneRequest asks a cove server to delete the checkpoints that no rule keeps. Those
// with a label stay, and the one that the sprite goes on from.
type PruneRequest struct {
	Retention *Retention `json:"keep,omitempty"` // nil: the sprite's own
	All       bool       `json:"all,omitempty"`  // also those that were asked for
	DryRun    bool       `json:"dry_run,omitempty"`
}

// PruneResult says what has become of a sprite's checkpoints, or would.
type PruneResult struct {
	Removed []PruneItem `json:"removed"`
	Kept    []PruneItem `json:"kept"`
}

// PruneItem is one checkpoint.
type PruneItem struct {
	ID         string    `json:"id"`
	CreateTime time.Time `json:"create_time"`
	Why        string    `json:"why,omitempty"` // it is kept, for people
}

// MaxForks is how many copies of a sprite a cove server makes at once.
const MaxForks = 100

// ForkRequest asks a cove server for a copy of a sprite.
type ForkRequest struct {
	Name       string   `json:"name"`
	Names      []string `json:"names,omitempty"`      // of several, in the place of Name: see Forks
	Checkpoint string   `json:"checkpoint,omitempty"` // empty: as it is now
	Labels     []string `json:"labels,omitempty"`
	Owner      string   `json:"owner,omitempty"`
	Boot       bool     `json:"boot,omitempty"` // without the memory: what runs in the other does not run in it
}

// The kinds of change of a DiffEntry.
const (
	DiffAdded   = "added"
	DiffChanged = "changed"
	DiffRemoved = "removed"
)

// DiffEntry is one file that differs between two states of a sprite's disk.
type DiffEntry struct {
	Change  string   `json:"change"`             // DiffAdded, DiffChanged or DiffRemoved
	Path    string   `json:"path"`               // absolute, in the sprite
	RawPath []byte   `json:"raw_path,omitempty"` // where that is no UTF-8
	Type    string   `json:"type"`               // file, directory, symlink, fifo, socket or device: what it is then, or was
	Size    int64    `json:"size"`               // in bytes, of a file: then; 0 if it was removed
	OldSize int64    `json:"old_size"`           // and before
	What    []string `json:"what,omitempty"`     // of one that changed: type, size, target, mode, owner, attributes, time
}

// Name is the path, byte by byte as it is in the sprite.
func (e DiffEntry) Name() string {
	if len(e.RawPath) > 0 {
		return string(e.RawPath)
	}
	return e.Path
}

// DiffSummary counts what a diff has told.
type DiffSummary struct {
	Added        int64 `json:"added"`
	Changed      int64 `json:"changed"`
	Removed      int64 `json:"removed"`
	AddedBytes   int64 `json:"added_bytes"` // of files that were added, or of what others have grown by
	RemovedBytes int64 `json:"removed_bytes"`
}

// Add counts an entry.
func (s *DiffSummary) Add(e DiffEntry) {
	switch e.Change {
	case DiffAdded:
		s.Added++
	case DiffChanged:
		s.Changed++
	case DiffRemoved:
		s.Removed++
	}
	s.AddedBytes += max(e.Size-e.OldSize, 0)
	s.RemovedBytes += max(e.OldSize-e.Size, 0)
}

// DiffLine is a line of the stream that a diff is. Exactly one field is set; the last
// line has the summary, or why there is none.
type DiffLine struct {
	Entry   *DiffEntry   `json:"entry,omitempty"`
	Summary *DiffSummary `json:"summary,omitempty"`
	Error   *ErrorBody   `json:"error,omitempty"`
}

// Diff tells, on a cove server, which files differ between two states of the sprite's
// disk. The state from is a checkpoint; to is another one, or the present state if it
// is empty. Contents are not compared: a file that was written anew with the same
// content has changed. An error of tell ends it.
func (s *Sprite) Diff(ctx context.Context, from, to string, tell func(DiffEntry) error) (DiffSummary, error) {
	query := url.Values{}
	if to != "" {
		query.Set("to", to)
	}
	c := Request{Method: http.MethodGet, Path: s.path("checkpoints", from, "diff"), Query: query}
	summary, err := report(ctx, s.client, c, func(line DiffLine) (*DiffSummary, *ErrorBody, error) {
		if line.Entry != nil {
			return nil, nil, tell(*line.Entry)
		}
		return line.Summary, line.Error, nil
	})
	if err != nil {
		return summary, fmt.Errorf("compare states of sprite %s: %w", s.name, err)
	}
	return summary, nil
}

// report makes a call that is answered by a stream of lines. The last line has a
// summary, or says why there is none. The function read looks at a line.
func report[Line, Summary any](ctx context.Context, c *Client, r Request, read func(Line) (*Summary, *ErrorBody, error)) (summary Summary, err error) {
	r.Header = http.Header{"Accept": {ndjson}}
	resp, err := c.Do(ctx, r)
	if err != nil {
		return summary, err
	}
	defer resp.Body.Close()
	whole := false
	err = readLines(resp.Body, func(text []byte) error {
		var line Line
		if err := json.Unmarshal(text, &line); err != nil {
			return err
		}
		last, failed, err := read(line)
		switch {
		case err != nil:
			return err
		case failed != nil:
			return &Error{StatusCode: resp.StatusCode, ErrorBody: *failed}
		case last != nil:
			summary, whole = *last, true
		}
		return nil
	})
	if err == nil && !whole {
		err = errors.New("the answer broke off")
	}
	return summary, err
}

// VerifyProblem is a file of a checkpoint that is not what it was.
type VerifyProblem struct {
	Path    string `json:"path"`               // in the sprite
	RawPath []byte `json:"raw_path,omitempty"` // where that is no UTF-8
	What    string `json:"what"`               // for people
}

// Name is the path, byte by byte as it is in the sprite.
func (p VerifyProblem) Name() string {
	if len(p.RawPath) > 0 {
		return string(p.RawPath)
	}
	return p.Path
}

// VerifyProgress is how far a verification is.
type VerifyProgress struct {
	Bytes int64 `json:"bytes"` // read
	Total int64 `json:"total"`
}

// VerifySummary says what a verification has found.
type VerifySummary struct {
	Layers   int64    `json:"layers"` // that were compared
	Files    int64    `json:"files"`
	Bytes    int64    `json:"bytes"`
	Problems int64    `json:"problem_count"`
	Unlisted int64    `json:"unlisted"`          // layers that had nothing to compare with, until now
	Damaged  []string `json:"damaged,omitempty"` // checkpoints with a problem, by this verification or another
}

// VerifyLine is a line of the stream that a verification is. Exactly one field is
// set; the last line has the summary, or why there is none.
type VerifyLine struct {
	Progress *VerifyProgress `json:"progress,omitempty"`
	Problem  *VerifyProblem  `json:"problem,omitempty"`
	Summary  *VerifySummary  `json:"summary,omitempty"`
	Error    *ErrorBody      `json:"error,omitempty"`
}

// Verify makes a cove server read the files of a checkpoint, and compare them with what
// they were. If id is empty, the server reads those of all checkpoints. Verify calls
// tell with each line before the last.
func (s *Sprite) Verify(ctx context.Context, id string, tell func(VerifyLine)) (VerifySummary, error) {
	query := url.Values{}
	if id != "" {
		query.Set("checkpoint", id)
	}
	c := Request{Method: http.MethodPost, Path: s.path("checkpoints", "verify"), Query: query}
	summary, err := report(ctx, s.client, c, func(line VerifyLine) (*VerifySummary, *ErrorBody, error) {
		if line.Error == nil && line.Summary == nil {
			tell(line)
		}
		return line.Summary, line.Error, nil
	})
	if err != nil {
		return summary, fmt.Errorf("verify checkpoints of sprite %s: %w", s.name, err)
	}
	return summary, nil
}

// CheckpointEvent is a line of the stream that tells of a checkpoint or a restore
// (protocol section 8.1).
type CheckpointEvent struct {
	Type  string    `json:"type"` // info, stdout, stderr, error or complete
	Data  string    `json:"data,omitempty"`
	Error string    `json:"error,omitempty"`
	Time  time.Time `json:"time"`

	// Of a cove server's last line.
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	Restored   *Restored   `json:"restored,omitempty"`
	Code       string      `json:"code,omitempty"`
	Hint       string      `json:"hint,omitempty"`
}

// Checkpoint makes a checkpoint, and calls tell, unless nil, with what the server
// says meanwhile. The answer of a server that does not say which it made is the
// newest there is then.
func (s *Sprite) Checkpoint(ctx context.Context, req CheckpointRequest, tell func(CheckpointEvent)) (Checkpoint, error) {
	var last CheckpointEvent
	err := s.checkpointStream(ctx, req, tell, &last, "checkpoint")
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint sprite %s: %w", s.name, err)
	}
	if last.Checkpoint != nil {
		return *last.Checkpoint, nil
	}
	all, err := s.Checkpoints(ctx, false)
	if err != nil {
		return Checkpoint{}, err
	}
	var newest Checkpoint
	for _, c := range all {
		if c.ID != "Current" && c.CreateTime.After(newest.CreateTime) {
			newest = c
		}
	}
	return newest, nil
}

// RestoreRequest says how to go back to a checkpoint.
type RestoreRequest struct {
	Boot bool `json:"boot,omitempty"` // a cove server: though the memory was kept
}

// RestoreCheckpoint brings the sprite back to a checkpoint. All sessions end.
func (s *Sprite) RestoreCheckpoint(ctx context.Context, id string, req RestoreRequest, tell func(CheckpointEvent)) (Restored, error) {
	var last CheckpointEvent
	if err := s.checkpointStream(ctx, req, tell, &last, "checkpoints", id, "restore"); err != nil {
		return Restored{}, fmt.Errorf("restore sprite %s: %w", s.name, err)
	}
	if last.Restored != nil {
		return *last.Restored, nil
	}
	return Restored{Checkpoint: id}, nil
}

// checkpointStream makes a call that answers by events, and hands them on. A stream
// without its end is an error.
func (s *Sprite) checkpointStream(ctx context.Context, in any, tell func(CheckpointEvent), last *CheckpointEvent, path ...string) error {
	resp, err := s.client.Do(ctx, Request{Method: http.MethodPost, Path: s.path(path...), JSON: in, Header: http.Header{"Accept": {ndjson}}})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var failed error
	err = readLines(resp.Body, func(line []byte) error {
		var e CheckpointEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		switch e.Type {
		case "error":
			message := e.Error
			if message == "" {
				message = e.Data
			}
			failed = &Error{StatusCode: resp.StatusCode, ErrorBody: ErrorBody{Code: e.Code, Message: message, Hint: e.Hint}}
		case "complete":
			*last = e
		}
		if tell != nil {
			tell(e)
		}
		return nil
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return err
	case last.Type == "":
		return fmt.Errorf("the stream broke off, so its outcome is not known: %w", io.ErrUnexpectedEOF)
	}
	return nil
}

// Checkpoints describes what the sprite is now, and its checkpoints; those that
// nobody asked for only with auto.
func (s *Sprite) Checkpoints(ctx context.Context, auto bool) ([]Checkpoint, error) {
	query := url.Values{}
	if auto {
		query.Set("includeAuto", "true")
	}
	var list []Checkpoint
	if err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("checkpoints"), Query: query, Retry: true}, &list); err != nil {
		return nil, fmt.Errorf("list the checkpoints of sprite %s: %w", s.name, err)
	}
	return list, nil
}

// CheckpointInfo describes one checkpoint.
func (s *Sprite) CheckpointInfo(ctx context.Context, id string) (Checkpoint, error) {
	var c Checkpoint
	if err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("checkpoints", id), Retry: true}, &c); err != nil {
		return c, fmt.Errorf("checkpoint %s of sprite %s: %w", id, s.name, err)
	}
	return c, nil
}

// DeleteCheckpoint forgets a checkpoint. The one that the sprite goes on from can't
// be.
func (s *Sprite) DeleteCheckpoint(ctx context.Context, id string) error {
	if err := s.client.Call(ctx, Request{Method: http.MethodDelete, Path: s.path("checkpoints", id)}, nil); err != nil {
		return fmt.Errorf("delete checkpoint %s of sprite %s: %w", id, s.name, err)
	}
	return nil
}

// PruneCheckpoints deletes, on a cove server, the checkpoints that no rule keeps.
func (s *Sprite) PruneCheckpoints(ctx context.Context, req PruneRequest) (PruneResult, error) {
	var result PruneResult
	if err := s.client.Call(ctx, Request{Method: http.MethodPost, Path: s.path("checkpoints", "prune"), JSON: req}, &result); err != nil {
		return result, fmt.Errorf("prune checkpoints of sprite %s: %w", s.name, err)
	}
	return result, nil
}

// Suspend has the sprite of a cove server sleep now, with its memory; an error if it
// is in use.
func (s *Sprite) Suspend(ctx context.Context) (Info, error) { return s.sleepCall(ctx, "suspend") }

// Wake wakes the sprite of a cove server.
func (s *Sprite) Wake(ctx context.Context) (Info, error) { return s.sleepCall(ctx, "wake") }

func (s *Sprite) sleepCall(ctx context.Context, verb string) (Info, error) {
	var info Info
	if err := s.client.Call(ctx, Request{Method: http.MethodPost, Path: s.path(verb), JSON: struct{}{}}, &info); err != nil {
		return info, fmt.Errorf("%s sprite %s: %w", verb, s.name, err)
	}
	return info, nil
}

// Forks makes several copies of a sprite, named by req.Names, of one and the same
// moment. If not all could be made, those that were made stay.
func (s *Sprite) Forks(ctx context.Context, req ForkRequest) ([]Info, error) {
	var list ListResponse
	if err := s.client.Call(ctx, Request{Method: http.MethodPost, Path: s.path("fork"), JSON: req}, &list); err != nil {
		return nil, fmt.Errorf("fork sprite %s: %w", s.name, err)
	}
	return list.Sprites, nil
}

// Fork makes a copy of a sprite.
func (s *Sprite) Fork(ctx context.Context, req ForkRequest) (Info, error) {
	var info Info
	if err := s.client.Call(ctx, Request{Method: http.MethodPost, Path: s.path("fork"), JSON: req}, &info); err != nil {
		return info, fmt.Errorf("fork sprite %s: %w", s.name, err)
	}
	return info, nil
}
