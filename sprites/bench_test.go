package sprites_test

import (
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// BenchmarkExecTrue is a whole command over a WebSocket of its own, against a
// server in this process; BenchmarkExecTrueFloor is the process alone.
func BenchmarkExecTrue(b *testing.B) {
	_, sprite := newMachine(b)
	for b.Loop() {
		if err := sprite.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExecTrueFloor(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStdin sends input through cat and back.
func BenchmarkStdin(b *testing.B) {
	_, sprite := newMachine(b)
	const size = 16 << 20
	b.SetBytes(size)
	for b.Loop() {
		cmd := sprite.Command("cat")
		cmd.Stdin = io.LimitReader(endless{}, size)
		cmd.Stdout = io.Discard
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWriteFile sends a body to a server that drops it.
func BenchmarkWriteFile(b *testing.B) {
	client := serve(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.Copy(w, strings.NewReader(`{}`))
	}))
	const size = 64 << 20
	b.SetBytes(size)
	for b.Loop() {
		err := client.Sprite("paint").WriteFile(b.Context(), "x", io.LimitReader(endless{}, size), sprites.WriteOptions{Size: size})
		if err != nil {
			b.Fatal(err)
		}
	}
}
