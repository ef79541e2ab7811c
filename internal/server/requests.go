package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/jsonbody"
	"github.com/cove-dev/cove/internal/server/sprite"
)

// maxBody bounds a JSON body.
const maxBody = 1 << 20

// readBody reads a request's body, which has to arrive in time.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fail.New(sprite.CodeBadRequest, "the body did not arrive in time", "")
		}
		return nil, fmt.Errorf("read the body: %w", err)
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	return body, nil
}

// readJSON decodes a request's body: an object without unknown fields.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	return readObject(w, r, limit, v, "the body", "")
}

// readObject is readJSON, with a name for the object and a hint for errors.
func readObject(w http.ResponseWriter, r *http.Request, limit int64, v any, what, hint string) error {
	body, err := readBody(w, r, limit)
	if err != nil {
		return err
	}
	if err := jsonbody.Decode(body, v); err != nil {
		return fail.New(sprite.CodeBadRequest, what+" can't be read: "+clean(err.Error(), maxGuestText), hint)
	}
	return nil
}

// flag reads a boolean of the query.
func flag(r *http.Request, key string) (bool, error) {
	switch text := r.URL.Query().Get(key); text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, fail.New(sprite.CodeBadRequest, fmt.Sprintf("%s must be true or false, not %.40q", key, text), "")
	}
}
