package cli

import (
	"io"
	"testing"
	"testing/synctest"
)

// While a connection is lost, what is typed goes to who waits for another one, and not to the
// command: whether a read waited for it when that began, or begins meanwhile, or none comes.
func TestPausedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, person := io.Pipe()
		k := newKeyboard(in)
		keys := k.pausing()
		got := make(chan string)
		read := func() {
			b := make([]byte, 10)
			n, err := keys.Read(b)
			if err != nil {
				t.Error(err)
			}
			got <- string(b[:n])
		}
		press := func(key string) {
			t.Helper()
			if _, err := io.WriteString(person, key); err != nil {
				t.Fatal(err)
			}
		}
		for _, waits := range []bool{true, false} {
			if waits {
				go read()
				synctest.Wait()
			}
			goOn := keys.pause()
			if !waits {
				go read()
			}
			synctest.Wait()
			press("x")
			if meanwhile := string(<-k.typed); meanwhile != "x" {
				t.Errorf("waiting: got %q", meanwhile)
			}
			goOn()
			press("y")
			if typed := <-got; typed != "y" {
				t.Errorf("the command got %q", typed)
			}
		}
		for range 3 {
			keys.pause()()
		}
		go read()
		press("z")
		if typed := <-got; typed != "z" {
			t.Errorf("the command got %q", typed)
		}
		if err := person.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
