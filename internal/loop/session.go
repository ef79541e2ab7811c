package loop

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// A Session is a conversation that can be gone on with. Its file has a line with the
// id and the provider, and then a Message a line, whole, however much of it a model
// was told later.
type Session struct {
	ID       string
	Messages []Message // that it had when it was opened

	file *os.File
	err  error
}

// sessionHead is the first line.
type sessionHead struct {
	ID       string `json:"session_id"`
	Provider string `json:"provider"`
}

// OpenSession opens the session that a file keeps, or begins one there. One that was
// with another provider, whose messages no other understands, is an error. A last line
// that is not whole, of a loop that was killed, is dropped.
func OpenSession(name, provider string) (*Session, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	s := &Session{file: f}
	if err := s.read(provider); err != nil {
		return nil, errors.Join(fmt.Errorf("read the session %s: %w", name, err), f.Close())
	}
	return s, nil
}

func (s *Session) read(provider string) error {
	data, err := io.ReadAll(s.file)
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	if err := s.file.Truncate(int64(whole)); err != nil {
		return err
	}
	if _, err := s.file.Seek(int64(whole), io.SeekStart); err != nil {
		return err
	}
	if whole == 0 {
		s.ID = newID()
		s.write(sessionHead{s.ID, provider})
		return s.err
	}
	d := json.NewDecoder(bufio.NewReader(bytes.NewReader(data[:whole])))
	var head sessionHead
	if err := d.Decode(&head); err != nil {
		return err
	}
	if head.Provider != provider {
		return fmt.Errorf("it was with a model of %s, and can't go on with one of %s", head.Provider, provider)
	}
	s.ID = head.ID
	for {
		var m Message
		if err := d.Decode(&m); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		s.Messages = append(s.Messages, m)
	}
}

func (s *Session) add(m Message) { s.write(m) }

// write adds a line. The first error stands.
func (s *Session) write(v any) {
	if s.file == nil || s.err != nil {
		return
	}
	line, err := json.Marshal(v)
	if err == nil {
		_, err = s.file.Write(append(line, '\n'))
	}
	if err != nil {
		s.err = fmt.Errorf("write the session: %w", err)
	}
}

// Close closes the file.
func (s *Session) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

func newID() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
