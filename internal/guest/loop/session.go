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
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
)

// A Session is a conversation that can be resumed. Its file has a line with the id and the
// provider, and then one Message per line. Messages are kept whole, even if later requests
// leave parts out.
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

// sessionID is what ids look like.
var sessionID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{16}$`) })

// NewSession begins a session, which is kept in a file in dir. It makes the folder.
func NewSession(dir, provider string) (*Session, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Session{ID: newID()}
	var err error
	if s.file, err = os.OpenFile(s.name(dir), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	s.write(sessionHead{s.ID, provider})
	return s, s.err
}

// ResumeSession resumes the session of that id. It is an error if the session was with another
// provider, whose messages this one does not understand. If a loop was killed, an incomplete
// last line is dropped.
func ResumeSession(dir, id, provider string) (*Session, error) {
	s := &Session{ID: id}
	if !sessionID().MatchString(id) {
		return nil, fmt.Errorf("%.40q is not the id of a session", id)
	}
	f, err := os.OpenFile(s.name(dir), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no session %s in %s", id, dir)
	}
	if err != nil {
		return nil, err
	}
	s.file = f
	if err := s.read(provider); err != nil {
		return nil, errors.Join(fmt.Errorf("read the session %s: %w", id, err), f.Close())
	}
	return s, nil
}

func (s *Session) name(dir string) string { return filepath.Join(dir, s.ID+".jsonl") }

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
	d := json.NewDecoder(bufio.NewReader(bytes.NewReader(data[:whole])))
	var head sessionHead
	if err := d.Decode(&head); err != nil {
		return err
	}
	if head.Provider != provider {
		return fmt.Errorf("it began with a model of %s, and can't resume with one of %s", head.Provider, provider)
	}
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

// Close closes the file. A nil session has none.
func (s *Session) Close() error {
	if s == nil || s.file == nil {
		return nil
	}
	return s.file.Close()
}

func newID() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
