package sprites

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"time"
)

// quietStream is for how long a stream of lines may be silent.
const quietStream = 90 * time.Second

const ndjson = "application/x-ndjson"

var (
	// ErrSilent is the error of Lines if the server sends nothing for 90 s: no line, and no
	// empty line as a sign of life.
	ErrSilent = errors.New("the server went silent")
	// ErrLongLine is the error of a line of more than 4 MiB.
	ErrLongLine = errors.New("a line of the answer is longer than 4 MiB")

	errStop = errors.New("stop reading lines")
)

// Lines sends a request, which asks for NDJSON, and yields the lines of its answer as they come.
// Lines that are empty are left out. A line is valid until the next. An error is yielded once, as
// the last; io.ErrUnexpectedEOF if the last line has no end. The caller may take any time for a line.
func (c *Client) Lines(ctx context.Context, r Request) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		stopped := false
		err := c.lines(ctx, r, func(line []byte) error {
			if stopped = !yield(line, nil); stopped {
				return errStop
			}
			return nil
		})
		if err != nil && !stopped {
			yield(nil, err)
		}
	}
}

func (c *Client) lines(ctx context.Context, r Request, each func([]byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(quietStream, func() { cancel(ErrSilent) })
	defer quiet.Stop()
	r.Header = r.Header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Set("Accept", ndjson)
	resp, err := c.Do(ctx, r)
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		if r.Answered != nil {
			err = r.Answered(resp)
		}
		if err == nil {
			err = readLines(lively{resp.Body, quiet}, func(line []byte) error {
				quiet.Stop() // it is the caller's time
				defer quiet.Reset(quietStream)
				return each(line)
			})
		}
	}
	if err != nil && errors.Is(context.Cause(ctx), ErrSilent) {
		return ErrSilent
	}
	return err
}

// lively puts off the end of a stream whenever something comes, a blank line too.
type lively struct {
	io.Reader
	quiet *time.Timer
}

func (l lively) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if n > 0 {
		l.quiet.Reset(quietStream)
	}
	return n, err
}

// readLines calls f for each line of an NDJSON stream that is not empty. A last
// line without its end is not a line but a cut.
func readLines(r io.Reader, f func([]byte) error) error {
	br := bufio.NewReaderSize(r, 64<<10)
	var long []byte
	for {
		part, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if long = append(long, part...); len(long) > maxLine {
				return ErrLongLine
			}
			continue
		}
		if err == io.EOF {
			if len(part)+len(long) > 0 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		if err != nil {
			return err
		}
		if long = append(long, part...); len(bytes.TrimSpace(long)) > 0 {
			if err := f(long); err != nil {
				return err
			}
		}
		long = long[:0]
	}
}
