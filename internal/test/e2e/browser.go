package e2e

import (
	"bytes"
	"image"
	"image/color"
	_ "image/jpeg" // a format of screenshots
	_ "image/png"  // another
	"path/filepath"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// pressed is the colour of Browse's page, once its button was pressed.
var pressed = color.RGBA{0x10, 0xa0, 0xc0, 0xff}

// Browse has Playwright drive a Chromium in a sprite. The sprite must have the folder of
// JSModules. Playwright opens a page of a service there, presses a button, and takes
// screenshots. Browse reads the screenshots over MCP, as an agent does, and checks their
// colour. launch is Playwright's launch options, as JSON. It returns the text of
// chrome://sandbox, where the browser describes its own sandbox.
func Browse(h *Host, sprite, launch string) string {
	t := h.T
	t.Helper()
	h.Write("page/index.html", `<!doctype html><title>not pressed</title><body style="margin:0;background:#123456">
<button style="margin:150px 0 0" onclick="document.title = 'was pressed'; document.body.style.background = '#10a0c0'">press</button>`)
	h.Write("screenshot.cjs", ReadFile(t, JSTests+"/screenshot.cjs"))
	h.Run("", "cove", "cp", "page", sprite+":/home/sprite/")
	h.Run("", "cove", "cp", "screenshot.cjs", sprite+":/home/sprite/")
	h.Run("", "cove", "service", "put", "-s", sprite, "--dir", "/home/sprite/page", "web", "python3", "-m", "http.server", "8080", "--bind", "127.0.0.1")
	modules := JSModules(t)
	out := h.Run("", "cove", "exec", "-s", sprite, "--env", "NODE_PATH="+modules, "--",
		filepath.Join(modules, ".bin", "node"), "screenshot.cjs", "http://127.0.0.1:8080/", launch)
	title, sandbox, _ := strings.Cut(out, "\n")
	if title != "was pressed" {
		t.Errorf("the page's title is %q", title)
	}

	s := MCPClient(h, nil, "-s", sprite)
	for file, mime := range map[string]string{"pressed": "image/png", "pressed.jpg": "image/jpeg"} {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "Read", Arguments: map[string]any{"file_path": file}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Content) != 2 || r.IsError {
			t.Fatalf("%s: the answer is %+v", file, r.Content)
		}
		text, _ := r.Content[0].(*mcp.TextContent)
		if text == nil || !strings.Contains(text.Text, file+" is an image: "+mime+", 320 × 200 pixels") {
			t.Errorf("%s: the text is %+v", file, text)
		}
		shot, _ := r.Content[1].(*mcp.ImageContent)
		if shot == nil || shot.MIMEType != mime {
			t.Fatalf("%s: the image is %.200v", file, r.Content[1])
		}
		picture, _, err := image.Decode(bytes.NewReader(shot.Data))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if size := picture.Bounds().Size(); size != image.Pt(320, 200) || !near(picture.At(300, 20), pressed) {
			t.Errorf("%s: it has %v pixels, of the colour %v, want %v", file, size, picture.At(300, 20), pressed)
		}
	}
	return sandbox
}

// near reports whether two colours are the same, up to JPEG's inexactness.
func near(a, b color.Color) bool {
	r1, g1, b1, _ := a.RGBA()
	r2, g2, b2, _ := b.RGBA()
	for _, d := range []int{int(r1) - int(r2), int(g1) - int(g2), int(b1) - int(b2)} {
		if d < -0x0400 || d > 0x0400 {
			return false
		}
	}
	return true
}
