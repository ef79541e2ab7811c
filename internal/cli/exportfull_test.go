package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// An archive that does not fit the disk is cut short, and the hint says no other.
func TestExportOnFullDisk(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "archive") }))
	defer s.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var errs bytes.Buffer
	exit := Main(t.Context(), []string{"export", "paint", "--url", s.URL, "--token", "x"}, Streams{In: strings.NewReader(""), Out: full, Err: &errs})
	if said := errs.String(); exit != exitNoSpace || !strings.Contains(said, "not complete") || strings.Contains(said, "nothing half-written") {
		t.Errorf("exit code %d:\n%s", exit, said)
	}
}
