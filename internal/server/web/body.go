package web

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// Bounds on the body of a request.
const (
	maxForm      = 4 << 20 // of a form: a plan of 1 MiB, whose bytes may be escaped as three each, and the other fields
	maxLoginForm = 4 << 10
	maxUpload    = 1 << 30          // of a file, which is handed on as it comes
	bodyPatience = 60 * time.Second // for a form, and for the next bytes of a file
)

// uploadRoute is the one route whose body is not a form.
const uploadRoute = "POST /web/sprites/{name}/files/upload"

// markField is the form's field, and markHeader the header, that has the mark of the session.
const (
	markField  = "_mark"
	markHeader = "X-Cove-Mark"
)

// awaitBody sets a deadline for the body of a request, if it has one. The deadline holds even
// if nobody reads the body: net/http reads it on before it sends an answer.
func awaitBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyPatience)) // without a connection of its own, it can't be set
	}
}

// readBody checks the mark of a request that changes something, and reads its form. A mark in the
// header is looked at before the form is.
func (v *view) readBody() error {
	old := fail.New("forbidden", "the page is too old", "load it again")
	mark := v.r.Header.Get(markHeader)
	file := v.r.Pattern == uploadRoute
	if (mark != "" || file) && !v.session.marked(mark) {
		return old
	}
	if file {
		v.r.Body = http.MaxBytesReader(v.w, &timely{v.r.Body, http.NewResponseController(v.w)}, maxUpload)
		return nil
	}
	if err := readForm(v.w, v.r, maxForm); err != nil {
		return err
	}
	if mark == "" && !v.session.marked(v.r.PostForm.Get(markField)) {
		return old
	}
	return nil
}

// readForm reads the fields of a form, of at most limit bytes, into r.PostForm. Forms with files
// are none: they would be kept in memory and on the disk.
func readForm(w http.ResponseWriter, r *http.Request, limit int64) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); r.ContentLength != 0 && (err != nil || kind != "application/x-www-form-urlencoded") {
		return fail.New("bad_request", "a form must be of the type application/x-www-form-urlencoded", "")
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	err := r.ParseForm()
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return fail.Newf("too_large", "", "the form is larger than %d bytes", limit)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fail.New("bad_request", "the form did not arrive in time", "")
	case err != nil:
		return fail.New("bad_request", "the form can't be read: "+line(err.Error()), "load the page again")
	}
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the answer may take longer
	}
	return nil
}

// timely is a body that must bring something now and then.
type timely struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (t *timely) Read(p []byte) (int, error) {
	_ = t.rc.SetReadDeadline(time.Now().Add(bodyPatience)) // without a connection of its own, it can't be set
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		_ = t.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}
