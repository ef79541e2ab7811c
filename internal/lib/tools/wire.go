package tools

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// version is the protocol's. Two halves of different versions do not speak to each
// other: both are cove's own.
const version = 1

// A frame is a length (four bytes, big-endian) and a JSON document of that length: a request,
// or an answer.
const (
	maxRequest = 128 << 20
	maxAnswer  = 16 << 20
)

// request is a call, or cancels one.
type request struct {
	ID     uint64          `json:"id"`
	Tool   string          `json:"tool,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	Cancel bool            `json:"cancel,omitempty"`
}

// answer is the end of a call, or its progress. The first one is no answer to a call, but has
// Hello.
type answer struct {
	ID       uint64          `json:"id,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *fail.Error     `json:"error,omitempty"`
	Progress *Progress       `json:"progress,omitempty"`
	Hello    *hello          `json:"hello,omitempty"`
}

type hello struct {
	Version int      `json:"version"`
	Dir     string   `json:"dir"`
	Role    string   `json:"role"`
	Tools   []string `json:"tools"`
}

var errFrame = errors.New("not a frame")

// readFrame reads a frame into v. io.EOF: there are no more. It takes memory only for data
// that has come, not for the length that a hostile frame promises.
func readFrame(r io.Reader, most int, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			return fmt.Errorf("%w: it ends within a length", errFrame)
		}
		return err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n == 0 || n > int64(most) {
		return fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	var b bytes.Buffer
	b.Grow(int(min(n, 64<<10)))
	if _, err := io.CopyN(&b, r, n); err != nil {
		return fmt.Errorf("%w: it ends early: %w", errFrame, err)
	}
	if err := json.Unmarshal(b.Bytes(), v); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return nil
}

// frameOf is v as a frame.
func frameOf(v any, most int) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	n := b.Len() - 4
	if n > most {
		return nil, errorf(CodeTooLarge, "it takes %d bytes on the way, and %d are the most", n, most)
	}
	binary.BigEndian.PutUint32(b.Bytes(), uint32(n))
	return b.Bytes(), nil
}

// frameWriter writes whole frames, from many goroutines.
type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) send(v any, most int) error {
	frame, err := frameOf(v, most)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err = f.w.Write(frame)
	return err
}
