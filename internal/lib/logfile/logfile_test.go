package logfile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	opened := 0
	l := &File{Path: path, Max: 100, Opened: func(*os.File) { opened++ }}
	for i := range 50 {
		if _, err := fmt.Fprintf(l, "line %02d\n", i); err != nil { // 8 bytes
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	now, err1 := os.ReadFile(path)
	old, err2 := os.ReadFile(path + OldSuffix)
	if err1 != nil || err2 != nil || string(now) != "line 48\nline 49\n" || !strings.HasPrefix(string(old), "line 36\n") || len(old) != 96 || opened != 5 {
		t.Errorf("got %q and %q after %d files (%v, %v)", now, old, opened, err1, err2)
	}
	// A file that was there goes on; one line is never in two files.
	next := &File{Path: path, Max: 20}
	if _, err := next.Write([]byte(strings.Repeat("x", 50))); err != nil {
		t.Fatal(err)
	}
	if old, err := os.ReadFile(path + OldSuffix); err != nil || string(old) != "line 48\nline 49\n" {
		t.Errorf("got %q, %v", old, err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 50 || st.Mode() != 0o600 {
		t.Errorf("got %v, %v", st, err)
	}
}

func TestTrim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runsc.log")
	if err := Trim(path, 10); err != nil {
		t.Errorf("of no file: %v", err)
	}
	other, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	fmt.Fprint(other, "0123456789")
	if err := Trim(path, 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(other, "abc")
	if err := Trim(path, 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(other, "after")
	now, err1 := os.ReadFile(path)
	old, err2 := os.ReadFile(path + OldSuffix)
	if string(now) != "after" || string(old) != "3456789abc" {
		t.Errorf("got %q and %q (%v, %v)", now, old, err1, err2)
	}
}

func TestLimit(t *testing.T) {
	var out bytes.Buffer
	h := Limit(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})).WithAttrs([]slog.Attr{slog.String("sandbox", "a")})
	start := time.Unix(1e9, 0)
	say := func(level slog.Level, message string, at time.Duration) {
		if err := h.Handle(context.Background(), slog.NewRecord(start.Add(at), level, message, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		say(slog.LevelWarn, "connector", time.Duration(i)*time.Millisecond)
	}
	say(slog.LevelError, "other", time.Second)
	for range 100 {
		say(slog.LevelDebug, "detail", time.Second)
	}
	say(slog.LevelWarn, "connector", window)
	say(slog.LevelWarn, "connector", window)
	text := out.String()
	if n := strings.Count(text, "msg=connector"); n != burst+2 {
		t.Errorf("%d of 1002 lines, want %d", n, burst+2)
	}
	if strings.Count(text, "suppressed=950") != 1 || strings.Count(text, "suppressed") != 1 || strings.Count(text, "msg=other") != 1 || strings.Count(text, "msg=detail") != 100 {
		t.Errorf("got:\n%s", text)
	}
}
