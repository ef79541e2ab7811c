package images

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// The programs of testdata/examples are those of the SDKs' documentation, each a call or two.
// Their order is the one that a reader tries them in, on one sprite. The end of each lists
// patterns of the lines that it prints, like a Go example.
const exampleFolder = "testdata/examples"

// exampleServer is a server, and a folder whose programs use the unchanged SDK. There
// SpritesClient has the server's address, unless a program gives another.
type exampleServer struct {
	*e2e.Host
	dir, node string
	env       []string
}

func newExampleServer(h *e2e.Host) *exampleServer {
	h.T.Helper()
	modules := e2e.JSModules(h.T)
	client := h.Client()
	s := &exampleServer{Host: h, dir: h.Path("examples"), node: filepath.Join(modules, ".bin", "node")}
	h.Write("examples/node_modules/@fly/sprites/package.json", `{"type": "module", "exports": "./index.mjs"}`)
	h.Write("examples/node_modules/@fly/sprites/index.mjs", fmt.Sprintf(`export * from './sdk/dist/index.js';
import { SpritesClient as Client } from './sdk/dist/index.js';
export class SpritesClient extends Client {
  constructor(token, options) { super(token, { baseURL: %q, ...options }); }
}
`, client.URL))
	if err := os.Symlink(filepath.Join(modules, "@fly", "sprites"), filepath.Join(s.dir, "node_modules/@fly/sprites/sdk")); err != nil {
		h.T.Fatal(err)
	}
	s.env = append(os.Environ(), "HOME="+h.Home, "SPRITES_TOKEN="+client.Token, "SPRITE_NAME=paint", "NODE_OPTIONS=", "NODE_NO_WARNINGS=1")
	return s
}

// command prepares a program of the examples' folder.
func (s *exampleServer) command(ctx context.Context, program string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.node, program)
	cmd.Dir, cmd.Env = s.dir, s.env
	return cmd
}

// run runs a program of testdata/examples, and compares its output with the patterns at
// its end.
func (s *exampleServer) run(t *testing.T, file string) {
	text := e2e.ReadFile(t, file)
	_, wanted, ok := strings.Cut(text, "\n// Output:\n")
	if !ok {
		t.Fatal("it does not say what it prints")
	}
	s.Write(filepath.Join("examples", filepath.Base(file)), text)
	out, err := s.command(t.Context(), filepath.Base(file)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(wanted) {
		pattern := strings.TrimSpace(strings.TrimPrefix(line, "//"))
		if !regexp.MustCompile("(?m)" + pattern).Match(bytes.ReplaceAll(out, []byte("\r\n"), []byte("\n"))) {
			t.Errorf("nothing is %s in\n%s", pattern, out)
		}
	}
}

// runExamples runs the programs of testdata/examples whose names a pattern matches.
func (s *exampleServer) runExamples(t *testing.T, pattern string) {
	files, err := filepath.Glob(filepath.Join(exampleFolder, "*.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".mjs")
		if !regexp.MustCompile(pattern).MatchString(name) {
			continue
		}
		ran++
		if !t.Run(name, func(t *testing.T) { s.run(t, file) }) {
			return // the next programs use its result
		}
	}
	t.Logf("%d programs", ran)
}

// block is how the SDK's README shows a program.
var block = regexp.MustCompile("(?ms)^##+ ([^\n]+)\n(?:[^#`]*\n)?```typescript\n(.*?)^```")

// runREADME runs the programs in the README of the installed SDK, as they stand. If one
// assumes a client or a sprite, it gets one.
func (s *exampleServer) runREADME(t *testing.T) {
	shown := map[string]string{}
	for _, m := range block.FindAllStringSubmatch(e2e.ReadFile(t, filepath.Join(s.dir, "node_modules/@fly/sprites/sdk/README.md")), -1) {
		shown[m[1]] = m[2]
	}
	program := func(t *testing.T, title string) string {
		t.Helper()
		text, ok := shown[title]
		if !ok {
			t.Fatalf("the README shows no program under %q", title)
		}
		if !strings.Contains(text, "const sprite =") {
			text = "const sprite = client.sprite('my-sprite');\n" + text
		}
		if !strings.Contains(text, "const client =") {
			text = "import { SpritesClient } from '@fly/sprites';\nconst client = new SpritesClient(process.env.SPRITES_TOKEN!);\n" + text
		}
		name := strings.ReplaceAll(strings.ToLower(title), " ", "-") + ".mts"
		s.Write(filepath.Join("examples", name), text)
		return name
	}
	run := func(title string, patterns ...string) {
		t.Run(title, func(t *testing.T) {
			out, err := s.command(t.Context(), program(t, title)).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, pattern := range patterns {
				if !regexp.MustCompile("(?m)" + pattern).Match(out) {
					t.Errorf("nothing is %s in\n%s", pattern, out)
				}
			}
		})
	}
	run("Sprite Management") // which deletes its sprite
	mine := s.Client().Sprite("my-sprite")
	if _, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: "my-sprite"}); err != nil {
		t.Fatal(err)
	}
	run("Quick Start", "^total ", "^hello$", "^Exited with code 0$")
	run("Basic Command Execution", "^total ")
	run("Error Handling", "^Exit code: 1$")
	if err := mine.WriteFile(t.Context(), "app.py", strings.NewReader("import http.server\nhttp.server.HTTPServer(('', 8080), http.server.SimpleHTTPRequestHandler).server_close()\n"), sprites.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	run("Port Notifications")
	t.Run("TTY Mode", func(t *testing.T) {
		cmd := s.command(t.Context(), program(t, "TTY Mode"))
		cmd.Stderr = t.Output()
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		prompt := make([]byte, 1) // what is written before the shell is there is lost
		_, err := io.ReadFull(out, prompt)
		_, _ = io.WriteString(in, "echo here $((6*7)); exit\n")
		_ = in.Close() // or the program would go on
		all, readErr := io.ReadAll(out)
		if waitErr := cmd.Wait(); err != nil || readErr != nil || waitErr != nil || !bytes.Contains(all, []byte("here 42")) {
			t.Errorf("%v, %v, %v: %s", err, readErr, waitErr, all)
		}
	})
	t.Run("Detachable Sessions", func(t *testing.T) {
		other := mine.Command("sleep", "1000")
		other.MaxRunAfterDisconnect = new(time.Duration) // for ever
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		if err := other.Detach(); err != nil {
			t.Fatal(err)
		}
		cmd := s.command(t.Context(), program(t, "Detachable Sessions"))
		cmd.Stderr = t.Output()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.kill(t, mine, "bash") // which the program waits for
		var seen strings.Builder
		for buf := make([]byte, 512); err == nil && !strings.Contains(seen.String(), "sleep"); {
			var n int
			n, err = out.Read(buf)
			seen.Write(buf[:n])
		}
		if err != nil {
			t.Errorf("%v: %s", err, seen.String())
		}
		_ = cmd.Process.Kill() // it would stay attached
		_ = cmd.Wait()
	})
}

// kill ends a session once it is there.
func (s *exampleServer) kill(t *testing.T, sprite *sprites.Sprite, command string) {
	t.Helper()
	e2e.Await(t, "a session of "+command, func() bool {
		all, err := sprite.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, session := range all {
			if strings.Contains(session.Command, command) {
				_, err := sprite.Kill(t.Context(), session.ID, sprites.SIGKILL, 0)
				return err == nil
			}
		}
		return false
	})
}

// TestExamples runs a sample of the SDKs' examples over the tools of this machine.
func TestExamples(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	s := newExampleServer(h)
	s.runExamples(t, "^(01|02|06|13|14|20|21|24|25|27)_")
	s.runREADME(t)
}

// TestImageSDK: a program of the unchanged SDK makes sprites over an image, by its name.
func TestImageSDK(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	h.Serve(nil)
	top := folder(t)
	write(t, filepath.Join(top, "srv/page"), "a page")
	bring(h, "small:1", v1.Config{Env: []string{"COLOUR=blue", "PATH=/bin"}}, busyboxLayer(t), top)
	newExampleServer(h).run(t, "testdata/image.mjs")
}
