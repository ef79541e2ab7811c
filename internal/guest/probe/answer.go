package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// maxEcho bounds what Answer repeats.
const maxEcho = 1000

// Answer serves HTTP on a free port of loopback until ctx ends: GET /health repeats the value
// of the query's echo. Once it listens, the file has the port's number.
func Answer(ctx context.Context, file string) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		text := r.URL.Query().Get("echo")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, text[:min(len(text), maxEcho)]) // the caller has gone
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: httpLimit}
	stop := context.AfterFunc(ctx, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(last) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	port := ln.Addr().(*net.TCPAddr).Port
	if err := os.WriteFile(file+".new", []byte(strconv.Itoa(port)), 0o600); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := os.Rename(file+".new", file); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
