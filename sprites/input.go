package sprites

import (
	"errors"
	"io"
	"sync"
)

// keptMax is how much input is kept that was sent and not heard to be taken. It is more than
// what systems hold on the way.
const keptMax = 16 << 20

// keptInput is the input of a command that can be rejoined. It keeps sent input until the
// command has taken it, and sends the rest again on the next connection. A nil one is that of
// a command without input.
type keptInput struct {
	tty bool

	mu       sync.Mutex
	change   sync.Cond // of any of the following
	kept     []byte    // of the input, from base on
	base     int64
	next     int64   // where in the input the next byte to send is
	end      bool    // there is no more
	endSent  bool    // on this connection
	sock     *socket // nil: no connection
	over     bool    // nobody wants it any more
	numbered bool    // the server says what was taken
}

func newKeptInput() *keptInput {
	k := new(keptInput)
	k.change.L = &k.mu
	return k
}

// add appends to the input, once all before it has been sent. It reports whether anybody
// wants it.
func (k *keptInput) add(p []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.over && k.next < k.base+int64(len(k.kept)) {
		k.change.Wait()
	}
	k.kept = append(k.kept, p...)
	if cut := len(k.kept) - keptMax; cut > 0 && k.numbered {
		k.forget(k.base + int64(cut))
	}
	k.change.Broadcast()
	return !k.over
}

// finish ends the input.
func (k *keptInput) finish() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end = true
	k.change.Broadcast()
}

// forget drops input that was taken. The caller holds mu.
func (k *keptInput) forget(taken int64) {
	if taken = min(taken, k.next); taken > k.base { // a sandbox chose it
		k.kept = k.kept[taken-k.base:]
		k.base = taken
	}
}

// took notes that the command has taken so much of the input.
func (k *keptInput) took(taken *int64) {
	if k == nil || taken == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget(*taken)
}

// begin sends the input on the first connection. taken is what the server says of it.
func (k *keptInput) begin(taken *int64, tty bool, sock *socket) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tty, k.numbered = tty, taken != nil
	k.connect(sock)
}

// resume goes on after what the command has taken, on another connection. It returns why it
// can't.
func (k *keptInput) resume(taken *int64, sock *socket) (why string) {
	if k == nil {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	end := k.base + int64(len(k.kept))
	switch {
	case !k.numbered: // see unsendable
	case taken == nil:
		return "the server no longer says how much of it the command has taken"
	case *taken < k.base:
		return "too much of it was on its way"
	default:
		k.next = min(*taken, end)
		k.forget(k.next)
	}
	k.connect(sock)
	return ""
}

// connect begins to send on a connection. The caller holds mu.
func (k *keptInput) connect(sock *socket) {
	if k.over {
		return
	}
	k.sock, k.endSent = sock, false
	sock.wg.Go(func() { k.send(sock) })
}

// lose says that the connection was lost.
func (k *keptInput) lose() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sock = nil
	k.change.Broadcast()
}

// close says that the command has ended.
func (k *keptInput) close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sock, k.over, k.kept = nil, true, nil
	k.change.Broadcast()
}

// unsendable reports whether some of it may be lost on the way, and can't be sent again. At a
// terminal people see that.
func (k *keptInput) unsendable() bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.numbered && !k.tty && k.next > 0
}

// send sends the input on a connection, until that ends.
func (k *keptInput) send(sock *socket) {
	buf := make([]byte, 1+frameSize)
	for {
		frame := k.frame(sock, buf)
		if frame == nil || sock.send(frame) != nil {
			return // if the connection has ended, the reader knows why
		}
	}
}

// frame waits for what is to be sent next on a connection. It is nil when the connection has
// ended.
func (k *keptInput) frame(sock *socket, buf []byte) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		left := k.kept[min(k.next-k.base, int64(len(k.kept))):]
		switch {
		case k.sock != sock:
			return nil
		case len(left) > 0:
			n := copy(buf[1:], left)
			k.next += int64(n)
			if !k.numbered {
				k.forget(k.next)
			}
			k.change.Broadcast()
			if k.tty {
				return buf[1 : 1+n]
			}
			buf[0] = byte(StreamStdin)
			return buf[:1+n]
		case k.end && !k.endSent:
			k.endSent = true
			buf[0] = byte(StreamStdinEOF)
			return buf[:1]
		}
		k.change.Wait()
	}
}

// keepInput reads the command's input, and has it sent.
func (r *running) keepInput(in io.Reader) {
	<-r.known
	buf := make([]byte, frameSize)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			r.fed.Store(true)
			if !r.input.add(buf[:n]) {
				return
			}
		}
		if err == nil {
			continue
		}
		if err != io.EOF && !errors.Is(err, io.ErrClosedPipe) {
			r.inputErr <- err
		}
		if r.tty {
			r.input.add([]byte{byte(StreamStdinEOF)}) // Ctrl-D, which is input there
		} else {
			r.input.finish()
		}
		return
	}
}
