package sprites

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"sync"
)

// copySize is how much a file's copy takes at a time.
const copySize = 256 << 10

// File is a file of a sprite, open for reading. Read and WriteTo stream one answer of
// the server, and belong to one goroutine. ReadAt and Stat make calls of their own, and
// any goroutine may use them.
type File struct {
	sprite *Sprite
	ctx    context.Context
	name   string
	body   io.ReadCloser
	etag   string
	size   int64 // -1: the server did not say
	left   int64 // of size
}

// Open opens a file for reading. The end of ctx cuts the reading too.
func (s *Sprite) Open(ctx context.Context, name string) (*File, error) {
	resp, err := s.readCall(ctx, name, -1, -1)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	size := resp.ContentLength
	if size < 0 && resp.ProtoMajor == 1 && len(resp.TransferEncoding) == 0 {
		_ = resp.Body.Close()
		return nil, pathError("open", name, errors.New("the server's answer has no end that could be checked"))
	}
	return &File{sprite: s, ctx: ctx, name: name, etag: resp.Header.Get("ETag"), body: resp.Body, size: size, left: size}, nil
}

// readCall asks for a file, or for the bytes from start up to end if these are
// not negative.
func (s *Sprite) readCall(ctx context.Context, name string, start, end int64) (*http.Response, error) {
	query := fileQuery(name)
	if start >= 0 {
		query.Set("start", strconv.FormatInt(start, 10))
		query.Set("end", strconv.FormatInt(end, 10))
	}
	return s.client.Do(ctx, Request{
		Method: http.MethodGet,
		Path:   s.path("fs", "read"),
		Query:  query,
		Header: http.Header{"Accept-Encoding": {"identity"}},
		Retry:  true,
	})
}

// Size is the file's size when it was opened, or -1 if the server did not say.
func (f *File) Size() int64 { return f.size }

// ETag names the file as it was when it was opened, for WriteOptions.IfMatch; empty: the server did not say.
func (f *File) ETag() string { return f.etag }

// Read reads on. io.EOF is the file's end, and nothing else is: an answer that
// was cut gives io.ErrUnexpectedEOF.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.body.Read(p)
	return n, f.took(n, err)
}

// took counts n bytes, and checks an end.
func (f *File) took(n int, err error) error {
	if f.size >= 0 {
		f.left -= int64(n)
	}
	if err == io.EOF {
		if f.size >= 0 && f.left != 0 {
			return pathError("read", f.name, io.ErrUnexpectedEOF)
		}
		return io.EOF
	}
	if err != nil {
		return pathError("read", f.name, err)
	}
	return nil
}

// WriteTo writes what is left of the file to w.
func (f *File) WriteTo(w io.Writer) (int64, error) {
	buf := make([]byte, copySize)
	var total int64
	for {
		n, err := f.body.Read(buf)
		if n > 0 {
			m, werr := w.Write(buf[:n])
			total += int64(m)
			if werr == nil && m < n {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return total, werr
			}
		}
		if err = f.took(n, err); err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// ReadAt reads from a place in the file, in a call of its own. A server that
// knows no ranges gives errors.ErrUnsupported.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.readPart(p, off)
	if err != nil && err != io.EOF {
		err = pathError("read", f.name, err)
	}
	return n, err
}

func (f *File) readPart(p []byte, off int64) (int, error) {
	resp, err := f.sprite.readCall(f.ctx, f.name, off, off+int64(len(p)))
	if e, ok := errors.AsType[*Error](err); ok && e.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return 0, io.EOF
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	// A server without ranges sends the whole file, and says nothing of a part.
	part := resp.StatusCode == http.StatusPartialContent || resp.Header.Get("Content-Range") != ""
	if !part && (off > 0 || resp.ContentLength < 0 || resp.ContentLength > int64(len(p))) {
		return 0, fmt.Errorf("read a part: %w", errors.ErrUnsupported)
	}
	n, err := io.ReadFull(resp.Body, p)
	if err == io.ErrUnexpectedEOF && int64(n) == resp.ContentLength || err == io.EOF && resp.ContentLength == 0 {
		err = io.EOF
	}
	return n, err
}

// Stat describes the file as it is now, following no link.
func (f *File) Stat() (fs.FileInfo, error) { return f.sprite.Stat(f.ctx, f.name) }

// Close ends the reading.
func (f *File) Close() error { return f.body.Close() }

// FileWriter writes a file of a sprite. The file is there, whole, once Close has
// returned nil; before that the old one is as it was, and it stays if Close fails
// (unless nothing but the server's answer was lost).
type FileWriter struct {
	ctx    context.Context
	name   string
	pipe   *io.PipeWriter
	sent   int64
	done   chan struct{} // closed when the server has answered
	result WriteResult   // its answer, once done
	err    error

	once sync.Once
}

// Create begins to make or replace a file; mode 0 means 0644. The caller ends it
// with Close, or with CloseWithError; the end of ctx is like the latter.
func (s *Sprite) Create(ctx context.Context, name string, mode fs.FileMode) *FileWriter {
	r, w := io.Pipe()
	f := &FileWriter{ctx: ctx, name: name, pipe: w, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.result, f.err = s.put(ctx, name, r, 0, WriteOptions{Mode: mode})
		_ = r.Close()
	}()
	return f
}

// Write sends p. An error is the server's answer, if it gave one.
func (f *FileWriter) Write(p []byte) (int, error) {
	n, err := f.pipe.Write(p)
	f.sent += int64(n)
	if errors.Is(err, io.ErrClosedPipe) {
		<-f.done
		if f.err != nil {
			err = f.err
		}
	}
	return n, pathError("write", f.name, err)
}

// Close ends the file and returns the server's answer.
func (f *FileWriter) Close() error { return f.end(nil) }

// CloseWithError abandons the file, with err as the reason; nil means Close.
// It returns when the connection has been given up.
func (f *FileWriter) CloseWithError(err error) error { return f.end(err) }

func (f *FileWriter) end(reason error) error {
	result := fs.ErrClosed
	f.once.Do(func() {
		if err := f.ctx.Err(); err != nil && reason == nil {
			// Not an end of the file: the request might still bring it through.
			_ = f.pipe.CloseWithError(err)
			<-f.done
			result = err
			return
		}
		if reason != nil {
			_ = f.pipe.CloseWithError(reason)
			<-f.done
			result = nil
			if f.err == nil {
				result = errors.New("the server had taken it already")
			}
			return
		}
		_ = f.pipe.Close()
		<-f.done
		if result = f.err; result == nil {
			result = f.result.check(f.sent)
		}
	})
	return pathError("write", f.name, result)
}
