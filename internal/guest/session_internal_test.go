package guest

import (
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// listener is where the output of one client goes.
type listener struct {
	ended chan struct{}
	once  sync.Once // the first exit counts

	mu   sync.Mutex
	text strings.Builder
	code int
}

func newListener() *listener { return &listener{ended: make(chan struct{})} }

func (l *listener) Write(_ sprites.Stream, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
}

func (l *listener) Exit(code int, _ string) {
	l.once.Do(func() {
		l.code = code
		close(l.ended)
	})
}

// heard waits for the end, and returns the output and the exit code.
func (l *listener) heard() string {
	<-l.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String() + strconv.Itoa(l.code)
}

// TestAttachBeforeStart: a client that attaches before the command is started gets its output and
// its end, as the first one does. That also holds if the command can't be started, or if nobody
// starts it any more.
func TestAttachBeforeStart(t *testing.T) {
	s := &Server{User: strconv.Itoa(os.Getuid()), Workdir: t.TempDir()}
	s.init()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, test := range []struct {
		program, want string
		begin         func(sess *session, first client)
	}{
		{"echo", "\n0", (*session).start},
		{"no-such-program", "cove: no-such-program: command not found\n127", (*session).start},
		{"echo", "cove: the client that wanted to run this has gone\n126", func(sess *session, first client) { sess.abort(); first.drop() }},
	} {
		cmd, err := s.sessions.commands.parse(url.Values{"cmd": {test.program}})
		if err != nil {
			t.Fatal(err)
		}
		sess, err := s.sessions.newSession(cmd)
		if err != nil {
			t.Fatal(err)
		}
		early, first := newListener(), newListener()
		if _, _, err := sess.attach(programClient{early}); err != nil {
			t.Fatal(err)
		}
		test.begin(sess, programClient{first})
		<-first.ended
		if got := early.heard(); got != test.want {
			t.Errorf("%s: got %q, want %q", test.program, got, test.want)
		}
	}
}
