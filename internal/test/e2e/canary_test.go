package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCanary: a canary is found wherever and however it is planted, and nowhere else.
func TestCanary(t *testing.T) {
	const canary Canary = "canary/of+the=test?0123"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"plain": string(canary), "query": url.QueryEscape(string(canary)), "hex": hex.EncodeToString([]byte(canary)),
		"upper": strings.ToUpper(hex.EncodeToString([]byte(canary))),
		"b0":    base64.StdEncoding.EncodeToString([]byte(canary)),
		"b1":    base64.URLEncoding.EncodeToString([]byte("x" + canary + "tail")),
		"b2":    base64.StdEncoding.EncodeToString([]byte("ab" + canary + "z")),
		"b4":    base64.StdEncoding.EncodeToString([]byte("KEY=" + canary)),
	} {
		if got := canary.In([]byte("before " + text + " after")); got == nil {
			t.Errorf("%s is not found", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "left-out"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"left-out/a", "clean"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.TrimSuffix(name, "clean")+string(canary[1:])), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := canary.InFiles(dir, "left-out"); err != nil || len(found) != 8 {
		t.Errorf("got %q, %v, want 8 files", found, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "left-out/a"), []byte(canary), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := canary.InFiles(dir); err != nil || len(found) != 9 {
		t.Errorf("got %q, %v, want 9 files", found, err)
	}

	if found, looked := canary.InProcesses(); found != nil || looked == 0 {
		t.Errorf("got %q, of %d", found, looked)
	}
	cmd := exec.Command("/bin/sh", "-c", "echo; read x", string(canary))
	cmd.Env = []string{"KEY=" + string(canary)}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if found, _ := canary.InProcesses(); len(found) != 2 {
		t.Errorf("got %q, want the arguments and the environment", found)
	}
	_ = in.Close()
	_ = cmd.Wait() // read fails
}
