package boot_test

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/cove-dev/cove/internal/lib/boot"
)

// Both ends of a handshake prove that they have the key, or neither goes on.
func TestHandshake(t *testing.T) {
	for _, keys := range [][2]string{{"key", "key"}, {"key", "other"}, {"key", ""}, {"", "key"}, {"", ""}, {"key", boot.NextKey("key", "x")}} {
		caller, guest := net.Pipe()
		admitted := make(chan error, 1)
		go func() {
			err := boot.Admit(guest, keys[1])
			if err != nil {
				_ = guest.Close() // the caller waits for an answer
			}
			admitted <- err
		}()
		err := boot.GreetWithin(t.Context().Done(), caller, keys[0])
		_ = caller.Close()
		if want := keys[0] == keys[1] && keys[0] != ""; (err == nil) != want || (<-admitted == nil) != want {
			t.Errorf("with the keys %q: %v", keys, err)
		}
		_ = guest.Close()
	}
	if a, b := boot.NextKey("key", "x"), boot.NextKey("key", "y"); a == b || a != boot.NextKey("key", "x") || len(a) != 64 {
		t.Errorf("the next keys are %q and %q", a, b)
	}
}

// said is an end that repeats recorded messages to any peer.
type said struct {
	io.Reader
	heard bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) { return s.heard.Write(p) }

// Neither end accepts a peer without the key. To such a peer it says no more than its first
// message, and it reads no more than the messages of the handshake.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: guest\r\n\r\n"))
	f.Add(append([]byte("cove-guest/1\r\n\r\n"), make([]byte, 200)...))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, data []byte) {
		reader := bytes.NewReader(data)
		guest := &said{Reader: reader}
		if err := boot.Greet(guest, "key"); err == nil {
			t.Error("a stranger is taken for the guest")
		}
		if guest.heard.Len() != 48 || len(data)-reader.Len() > 64 {
			t.Errorf("a stranger is told %d bytes, and %d were read", guest.heard.Len(), len(data)-reader.Len())
		}
		reader = bytes.NewReader(data)
		caller := &said{Reader: reader}
		if err := boot.Admit(caller, "key"); err == nil {
			t.Error("a stranger is admitted")
		}
		if caller.heard.Len() > 64 || len(data)-reader.Len() > 80 {
			t.Errorf("a stranger is told %d bytes, and %d were read", caller.heard.Len(), len(data)-reader.Len())
		}
	})
}
