package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// Frames of an answer to POST exec. The format has no length, so each frame is one
// write, one flush and so one chunk.
const (
	postFrame = 32 << 10
	// The JavaScript SDK takes each read of the body for a frame. Frames that are not far
	// apart in time come to it in one read. (Protocol section 17.5.)
	pacedFrame = 4000
	pacedPause = 10 * time.Millisecond
	pacedMost  = 500 * time.Millisecond // of pauses after one frame, on a busy machine
)

var errNoExit = errors.New("the command's connection ended without an exit code")

// postExec runs a command over plain HTTP (protocol sections 3.11 and 17.5). It speaks to the
// guest by WebSocket, as every other exec does.
func (g *guestRoutes) postExec(w http.ResponseWriter, r *http.Request) error {
	query, stdin, err := postQuery(r.URL)
	if err != nil {
		return err
	}
	lease, err := g.host.Use(r.Context(), r.PathValue("name"), "exec")
	if err != nil {
		return err
	}
	defer lease.Release()
	var guest side
	if err := g.guests.get(lease.Sandbox()).dial(r.Context(), "exec", query, &guest); err != nil {
		return endedOr(lease, err)
	}
	defer func() { _ = guest.conn.CloseNow() }()
	defer context.AfterFunc(r.Context(), func() { _ = guest.conn.CloseNow() })()
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	var input sync.WaitGroup
	if stdin {
		// The command may end before its input has come, and the rest must not be
		// taken for a request.
		_ = rc.EnableFullDuplex() // HTTP/2 has it always
		if r.Header.Get("Expect") != "" {
			// net/http says this when the body is first read, but not once the answer has begun.
			w.WriteHeader(http.StatusContinue)
		}
		w.Header().Set("Connection", "close")
	}
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush() // a client that has gone is noticed below
	if stdin {
		input.Go(func() { guest.feed(r.Body) })
	}
	answer := postAnswer{w: w, rc: rc, size: postFrame}
	if isPaced(r) {
		answer.size, answer.pause = pacedFrame, pacedPause
	}
	err = answer.pass(r.Context(), &guest)
	_ = guest.conn.CloseNow()
	if stdin {
		_ = rc.SetReadDeadline(time.Unix(1, 0)) // for input that nobody wants any more
		input.Wait()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // an answer that is cut must not look whole
	}
	return nil
}

// postQuery is the query for the guest, and whether the body is the command's input.
func postQuery(u *url.URL) (query string, stdin bool, err error) {
	q := u.Query()
	switch q.Get("tty") {
	case "", "false", "0":
	default:
		return "", false, needsWebSocket("a terminal")
	}
	if q.Get("id") != "" || q.Get("session_id") != "" {
		return "", false, needsWebSocket("attaching to a session")
	}
	switch text := q.Get("stdin"); text {
	case "": // a WebSocket's has input unless it says otherwise
		q.Set("stdin", "false")
	case "true", "1":
		stdin = true
	}
	return q.Encode(), stdin, nil
}

// needsWebSocket is the guest's own answer to calls that need a WebSocket.
func needsWebSocket(what string) error {
	return fail.New("invalid_request", what+" needs a WebSocket", "send the same request as GET, with Upgrade: websocket")
}

// isPaced reports whether a request is from the JavaScript SDK's execFileHTTP. Over
// TLS, and to any other client, frames go out as they come.
func isPaced(r *http.Request) bool {
	return r.TLS == nil && r.URL.Query().Has("path") && strings.HasPrefix(r.Header.Get("User-Agent"), "node")
}

// feed streams a request's body to the command's input, and its end, unless it was
// cut: that is the caller's absence, not an end.
func (s *side) feed(body io.Reader) {
	buf := make([]byte, 1+postFrame)
	buf[0] = byte(sprites.StreamStdin)
	wanted := true
	for {
		n, err := body.Read(buf[1:])
		if n > 0 && wanted {
			wanted = s.write(websocket.MessageBinary, buf[:1+n]) == nil
		}
		if errors.Is(err, io.EOF) {
			_ = s.write(websocket.MessageBinary, []byte{byte(sprites.StreamStdinEOF)}) // a command that has ended needs none
		}
		if err != nil {
			return
		}
	}
}

// postAnswer writes the frames of an answer.
type postAnswer struct {
	w     io.Writer
	rc    *http.ResponseController
	size  int           // of a frame, at most
	pause time.Duration // after a frame
}

// pass writes what the guest says, up to the exit frame. Without one it returns an
// error.
func (a *postAnswer) pass(ctx context.Context, guest *side) error {
	buf := make([]byte, a.size)
	for {
		typ, msg, err := guest.conn.Reader(ctx)
		if err != nil {
			return err
		}
		if typ != websocket.MessageBinary { // messages have no place in the answer
			err = drained(msg, nil)
		} else {
			err = a.message(msg, buf)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// message passes a message on, as frames that fit buf. It returns io.EOF after the
// exit.
func (a *postAnswer) message(msg io.Reader, buf []byte) error {
	if _, err := io.ReadFull(msg, buf[:1]); err == io.EOF {
		return nil // an empty message is not a frame
	} else if err != nil {
		return err
	}
	stream := sprites.Stream(buf[0])
	switch stream {
	case sprites.StreamStdout, sprites.StreamStderr:
	case sprites.StreamExit:
		if _, err := io.ReadFull(msg, buf[1:2]); err != nil {
			return errNoExit
		}
		if err := a.write(buf[:2]); err != nil {
			return err
		}
		return io.EOF
	default:
		return errNoExit
	}
	for {
		n, err := io.ReadFull(msg, buf[1:])
		if n > 0 {
			if err := a.write(buf[:1+n]); err != nil {
				return err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (a *postAnswer) write(frame []byte) error {
	if _, err := a.w.Write(frame); err != nil {
		return err
	}
	if err := a.rc.Flush(); err != nil {
		return err
	}
	if a.pause > 0 && sprites.Stream(frame[0]) != sprites.StreamExit {
		pace(a.pause)
	}
	return nil
}

// pace sleeps for a pause. If the machine is so busy that this process has its turn late,
// a reader on it has, too: then it sleeps again.
func pace(pause time.Duration) {
	for begun := time.Now(); ; {
		before := time.Now()
		time.Sleep(pause)
		if now := time.Now(); now.Sub(before) < 2*pause || now.Sub(begun) >= pacedMost {
			return
		}
	}
}
