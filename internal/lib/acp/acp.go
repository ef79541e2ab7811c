// Package acp is the sprite's half of the Agent Client Protocol, a mode of the guest
// binary. It starts an agent that speaks the protocol on its standard streams, and serves the
// agent's file and terminal methods. These reach what the sprite's user reaches, and nothing
// of any host. Run drives the agent for a job; Bridge lets a client outside, an editor, talk
// with it.
package acp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"

	acp "github.com/coder/acp-go-sdk"
)

// MaxMessage bounds a message of the protocol, which is one line. The SDK takes no
// more than 10 MiB.
const MaxMessage = 8 << 20

// A Message is one of JSON-RPC: a request (Method and ID), a notification (Method), or
// an answer (ID). Parts that cove does not look at stay as they came.
type Message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// Request reports whether the message is a request, which awaits an answer.
func (m Message) Request() bool { return m.Method != "" && m.asked() }

// Answer reports whether the message is an answer.
func (m Message) Answer() bool { return m.Method == "" && m.asked() }

func (m Message) asked() bool { return len(m.ID) > 0 && string(m.ID) != "null" }

// Line is the message as it is sent.
func (m Message) Line() []byte {
	m.JSONRPC = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return nil // what was decoded can be encoded
	}
	return append(line, '\n')
}

// Refuse returns the answer that refuses a request with an error.
func (m Message) Refuse(e *acp.RequestError) Message {
	text, err := json.Marshal(e)
	if err != nil {
		text = []byte(`{"code":-32603,"message":"Internal error"}`)
	}
	return Message{ID: m.ID, Error: text}
}

// ErrLong says that a line is longer than MaxMessage. The Message has the parts of its
// beginning that could be read.
var ErrLong = errors.New("a message is longer than 8 MiB")

// ErrGarbage says that a line is not a message. It was skipped.
var ErrGarbage = errors.New("a line is not a message of the protocol")

// A Reader reads messages. It is not for several goroutines.
type Reader struct{ r *bufio.Reader }

// NewReader returns a Reader of what r gives.
func NewReader(r io.Reader) *Reader { return &Reader{bufio.NewReaderSize(r, 64<<10)} }

// Next returns the next message with its line. After ErrLong and ErrGarbage more messages may
// come; after ErrLong, line is only the beginning of the line. Next skips empty lines.
func (r *Reader) Next() (m Message, line []byte, err error) {
	for {
		line, err = r.line()
		if errors.Is(err, ErrLong) {
			return beginning(line), line, err
		}
		if err != nil {
			return m, nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			break
		}
	}
	if json.Unmarshal(line, &m) != nil || m.Method == "" && !m.asked() {
		return Message{}, line, ErrGarbage
	}
	return m, line, nil
}

// line reads a line. The last line may lack its end mark.
func (r *Reader) line() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.r.ReadSlice('\n')
		if long = long || len(line)+len(part) > MaxMessage; !long {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case long && (err == nil || errors.Is(err, io.EOF)):
			return line, ErrLong
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil
		default:
			return line, err
		}
	}
}

// beginning reads the id and the method of a message that is cut, if they stand before the
// cut.
func beginning(line []byte) Message {
	var m Message
	dec := json.NewDecoder(bytes.NewReader(line))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return m
	}
	for {
		key, err := dec.Token()
		if err != nil {
			return m
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return m
		}
		switch key {
		case "id":
			m.ID = value
		case "method":
			_ = json.Unmarshal(value, &m.Method) // any other value is none
		}
	}
}

// A Writer writes messages, each in one piece. Several goroutines may use it.
type Writer struct {
	W io.Writer

	mu  sync.Mutex
	err error
}

// Write writes whole lines. After an error there is no more.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.W.Write(p)
	w.err = err
	return n, err
}

// Err is the first error of a Write.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Send writes a message.
func (w *Writer) Send(m Message) error {
	_, err := w.Write(m.Line())
	return err
}

// quiet is what the SDK logs to: it would print whole messages.
var quiet = slog.New(slog.DiscardHandler)
