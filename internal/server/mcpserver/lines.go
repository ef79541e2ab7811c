package mcpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// The codes of JSON-RPC for a message that can't be answered by its ID.
const (
	codeParse   = -32700
	codeInvalid = -32600
)

// lines reads the messages of a client, one a line. The SDK ends a session at the first line
// that is no message. So lines answers such a line itself, with an error that has no ID, and goes
// on with the next.
type lines struct {
	in   *bufio.Reader
	out  io.Writer // a write is a whole message
	left []byte    // of a line that was read
}

// Read returns whole messages. Of a message longer than maxMessage, it returns the
// beginning, which the SDK refuses.
func (l *lines) Read(p []byte) (int, error) {
	for len(l.left) == 0 {
		line, err := l.line()
		if text := bytes.Trim(line, " \t\r\n"); len(text) < len(line) && len(line) <= maxMessage { // the SDK takes a blank for another message
			line = append(line[:0], text...)
			line = append(line, '\n')
		}
		if why, code := noMessage(line); code != 0 && (err == nil || errors.Is(err, io.EOF)) {
			fmt.Fprintf(l.out, `{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":%q}}`+"\n", code, why)
			line = nil
		}
		if l.left = line; len(line) == 0 && err != nil {
			return 0, err
		}
	}
	n := copy(p, l.left)
	l.left = l.left[n:]
	return n, nil
}

// line reads a line with its end. It stops soon after maxMessage bytes, even within a line.
func (l *lines) line() ([]byte, error) {
	var line []byte
	for {
		part, err := l.in.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) || len(line) > maxMessage {
			if errors.Is(err, bufio.ErrBufferFull) {
				err = nil
			}
			return line, err
		}
	}
}

// noMessage says why a line is not a message, and the error code for that. The code is 0 if the
// line is a message or empty, or if the SDK will refuse it as too long.
func noMessage(line []byte) (why string, code int) {
	text := bytes.TrimSuffix(line, []byte("\n"))
	if len(text) == 0 || len(line) > maxMessage {
		return "", 0
	}
	if !json.Valid(text) {
		return "parse error: the line is not JSON", codeParse
	}
	if text[0] == '[' { // a batch: the SDK knows whether the client may send it
		return "", 0
	}
	if _, err := jsonrpc.DecodeMessage(text); err != nil {
		return "invalid request: the line is not a message of JSON-RPC 2.0", codeInvalid
	}
	return "", 0
}

// whole is a writer for several goroutines that each write whole messages.
type whole struct {
	mu sync.Mutex
	io.WriteCloser
}

func (w *whole) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.WriteCloser.Write(p)
}
