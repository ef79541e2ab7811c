package boot

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Handshake is the version of the handshake that begins each connection to a
// guest's Port. Both ends prove that they have the key, which never travels:
//
//	caller → guest   preamble, which names the version; the caller's nonce
//	guest → caller   the guest's nonce; its proof
//	caller → guest   the caller's proof; then HTTP
//
// A proof is HMAC-SHA256, with the key, of the sender's role and both nonces. Each
// message has a fixed length, so that nothing of what follows is read. A guest whose
// version is 0 (of a sandbox that an earlier cove started) has no handshake: its calls
// carry the key as a bearer token. The shim's record of the sandbox has the version;
// the guest is never asked for it.
const Handshake = 1

// API stands for the guest's API wherever ports are dialled from outside: Port, after the
// handshake. A port that somebody chose is never 0.
const API = 0

// HandshakeLimit bounds the time of a handshake. A guest that is short of memory or of
// processors answers late. A call that fails because of this is worse than one that takes
// longer.
const HandshakeLimit = time.Minute

const (
	preamble  = "cove-guest/1\r\n\r\n" // no request of HTTP
	nonceSize = 32
	proofSize = sha256.Size
)

// ErrHandshake says that the other end did not prove that it has the key.
var ErrHandshake = errors.New("the other end of the connection did not prove itself")

type nonce [nonceSize]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// proof is what the end with this role shows. An empty key proves nothing.
func proof(key, role string, caller, guest nonce) []byte {
	h := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(h, preamble+role+"\x00") // never fails
	_, _ = h.Write(caller[:])
	_, _ = h.Write(guest[:])
	return h.Sum(nil)
}

// NextKey derives the next key of a guest from its key and a public text. A guest that gets
// another identity thus gets another key, and no key is sent.
func NextKey(key, text string) string {
	h := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(h, preamble+"next\x00"+text)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Greet is the caller's part of the handshake, by the deadlines that conn has. After
// an error, which is ErrHandshake if the guest's proof is wrong, conn is of no use.
func Greet(conn io.ReadWriter, key string) error {
	if key == "" {
		return ErrHandshake
	}
	own := newNonce()
	if _, err := conn.Write(append([]byte(preamble), own[:]...)); err != nil {
		return fmt.Errorf("greet the guest: %w", err)
	}
	var answer [nonceSize + proofSize]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("greet the guest: %w", err)
	}
	guest := nonce(answer[:nonceSize])
	if !hmac.Equal(answer[nonceSize:], proof(key, "guest", own, guest)) {
		return ErrHandshake
	}
	if _, err := conn.Write(proof(key, "caller", own, guest)); err != nil {
		return fmt.Errorf("greet the guest: %w", err)
	}
	return nil
}

// GreetWithin is Greet, within HandshakeLimit, or until done is closed. Afterwards
// conn has no deadline.
func GreetWithin(done <-chan struct{}, conn net.Conn, key string) error {
	if err := conn.SetDeadline(time.Now().Add(HandshakeLimit)); err != nil {
		return err
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-done:
			_ = conn.SetDeadline(time.Unix(1, 0)) // it may have ended
		case <-over:
		}
	}()
	err := Greet(conn, key)
	close(over)
	<-ended
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	return err
}

// Admit is the guest's part of the handshake, by the deadlines that conn has. After an
// error, which is ErrHandshake if the caller's proof is wrong, conn is of no use.
func Admit(conn io.ReadWriter, key string) error {
	if key == "" {
		return ErrHandshake
	}
	var hello [len(preamble) + nonceSize]byte
	if _, err := io.ReadFull(conn, hello[:len(preamble)]); err != nil {
		return fmt.Errorf("admit a caller: %w", err)
	}
	if string(hello[:len(preamble)]) != preamble {
		return ErrHandshake
	}
	if _, err := io.ReadFull(conn, hello[len(preamble):]); err != nil {
		return fmt.Errorf("admit a caller: %w", err)
	}
	caller, own := nonce(hello[len(preamble):]), newNonce()
	if _, err := conn.Write(append(own[:], proof(key, "guest", caller, own)...)); err != nil {
		return fmt.Errorf("admit a caller: %w", err)
	}
	var shown [proofSize]byte
	if _, err := io.ReadFull(conn, shown[:]); err != nil {
		return fmt.Errorf("admit a caller: %w", err)
	}
	if !hmac.Equal(shown[:], proof(key, "caller", caller, own)) {
		return ErrHandshake
	}
	return nil
}
