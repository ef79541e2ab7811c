package gateway

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// otherProtocol begins a connection that is neither TLS nor HTTP.
const otherProtocol = "AMQP\x00\x00\x09\x01"

// keyExchange begins the first packet of SSH.
const keyExchange = "\x00\x00\x01\x00\x06\x14"

// pgMessage is a first message of PostgreSQL.
func pgMessage(code uint32, rest string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(rest)))
	return string(binary.BigEndian.AppendUint32(b, code)) + rest
}

// lenient reads bytes as the most lenient of servers may. It skips all that some server
// skips, takes for white space all that some server does, and needs no version. It shares
// no code with what it judges. If there is a zero in the first line, the bytes are not a
// request: some servers end the line there, the others refuse it.
func lenient(b []byte) (request bool, hosts []string) {
	blank := func(c byte) bool {
		return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c >= 0x1c && c <= 0x1f || c == 0x85 || c == 0xa0
	}
	skip := func() {
		for len(b) > 0 && (b[0] <= ' ' || b[0] == 0x7f || blank(b[0])) {
			b = b[1:]
		}
	}
	v2 := []byte("\r\n\r\n\x00\r\nQUIT\n")
	if bytes.HasPrefix(b, v2) && len(b) >= 16 {
		b = b[min(len(b), 16+int(binary.BigEndian.Uint16(b[14:]))):]
	}
	skip()
	if bytes.HasPrefix(b, []byte("PROXY")) {
		if i := bytes.IndexByte(b, '\n'); i > 0 {
			b = b[i+1:]
			skip()
		}
	}
	lines := bytes.FieldsFunc(b, func(c rune) bool { return c == '\r' || c == '\n' })
	if len(lines) == 0 || bytes.IndexByte(lines[0], 0) >= 0 {
		return false, nil
	}
	for i, c := range lines[0] {
		if blank(c) {
			lines[0][i] = ' '
		}
	}
	words := strings.Fields(string(lines[0]))
	known := []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"}
	if len(words) < 2 || !slices.Contains(known, strings.ToUpper(words[0])) && !strings.HasPrefix(strings.ToUpper(words[len(words)-1]), "HTTP/") {
		return false, nil
	}
	if strings.ContainsFunc(words[0], func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	}) {
		return false, nil
	}
	if _, rest, ok := strings.Cut(words[1], "://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		hosts = append(hosts, host)
	}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(string(line), ":")
		if strings.EqualFold(strings.TrimSpace(name), "host") {
			hosts = append(hosts, strings.TrimSpace(value))
		}
	}
	return true, hosts
}

// A connection to a name may begin as a protocol that is known to name no other host. Any
// other beginning reaches no server as it came.
func TestBeginnings(t *testing.T) {
	heard := make(chan []byte, 1)
	silent := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, silent, func(c *net.TCPConn) {
		got, _ := io.ReadAll(c)
		heard <- got
	})
	w := enforced(t, "allowed.example", "deny denied.example")
	w.lookup(t, "allowed.example")
	send := func(text string) []byte {
		c, err := w.dial("tcp", silent.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(lastResort))
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
		select {
		case got := <-heard:
			return got
		case <-time.After(lastResort):
			t.Fatalf("%q: the server's connection does not end", text)
			return nil
		}
	}
	const rest = " / HTTP/1.1\r\nHost: denied.example\r\n\r\n"
	odd := map[string]string{
		"bare CR":             "GET / HTTP/1.1\rHost: denied.example\r\r",
		"lower case, leading": " get" + rest,
		"spaces at the end":   " GET  /  HTTP/1.1 \r\nHost: denied.example\r\n\r\n",
		"no version":          " GET /\r\n",
		"no end":              "GET http://denied.example/ HTTP/1.1",
		"no end of the line":  "GET",
		"PROXY 1":             "PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\nGET" + rest,
		"PROXY 1, unknown":    "PROXY UNKNOWN\r\nGET" + rest,
		"PROXY 2":             "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + strings.Repeat("\x01", 12) + "GET" + rest,
		"two methods":         "X\tGET" + rest,
		"SOCKS 4":             "\x04\x01\x00\x50\x00\x00\x00\x01u\x00denied.example\x00",
		"SOCKS 5":             "\x05\x01\x00",
		"XMPP":                "<?xml version='1.0'?><stream:stream to='denied.example' version='1.0'>",
		"git":                 "0033git-upload-pack /project.git\x00host=denied.example\x00",
		"SMTP, unasked":       "EHLO me\r\nSTARTTLS\r\n",
		"SSLv2":               "\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10",
		"TLS, alert first":    "\x15\x03\x01\x00\x02\x01\x00" + string(helloFor(t, "denied.example")),
		"TLS, CCS first":      "\x14\x03\x03\x00\x01\x01" + string(helloFor(t, "denied.example")),
		"TLS, data first":     "\x17\x03\x03\x00\x01\x01" + string(helloFor(t, "denied.example")),
		"TLS, empty record":   "\x16\x03\x01\x00\x00" + string(helloFor(t, "denied.example")),
		"TLS, split":          string(splitHello(helloFor(t, "denied.example"), 1)),
		"TLS, no end":         string(helloFor(t, "denied.example")[:50]),
		"SSH, then HTTP":      "SSH-2.0-x\r\nGET" + rest,
		"SSH, no version":     "SSH-2.0-\r\n" + keyExchange,
		"SSH, two CR":         "SSH-2.0-x\r\r\n" + keyExchange,
		"SSH, a path":         "SSH-2.0-GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n",
		"PostgreSQL, GET":     pgMessage(3<<16, "GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n\x00\x00"),
		"PostgreSQL, TLS":     pgMessage(80877103, "") + string(helloFor(t, "denied.example")),
		"PostgreSQL, HTTP":    pgMessage(80877103, "") + "GET" + rest,
		"HTTP/2":              "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"junk":                "\x01\x02\x03\x04",
		"a word":              "PING\r\n",
	}
	for _, c := range "\x00\x01\x08\x0b\x0c\t \x1b\x1c\x1d\x1e\x1f\x7f" {
		odd[fmt.Sprintf("leading %q", c)] = string(c) + "GET" + rest
		odd[fmt.Sprintf("leading line break, %q", c)] = "\r\n" + string(c) + "GET" + rest
		if c != ' ' {
			odd[fmt.Sprintf("separated by %q", c)] = strings.ReplaceAll("GET / HTTP/1.1", " ", string(c)) + "\r\nHost: denied.example\r\n\r\n"
		}
	}
	for what, text := range odd {
		got := send(text)
		if is, hosts := lenient(bytes.Clone(got)); is {
			t.Errorf("%s: the server got a request for %q: %q", what, hosts, got)
		}
		for _, known := range []string{"SSH-2.0-x\r\n", pgMessage(80877103, "")} { // whose first part passes
			got = bytes.TrimPrefix(got, []byte(known))
		}
		if len(got) > 0 {
			t.Errorf("%s: the server got %q", what, got)
		}
	}
	for what, text := range map[string]string{
		"nothing":              "",
		"SSH":                  "SSH-2.0-OpenSSH_9.6p1 Ubuntu-3\r\n" + keyExchange + "GET / HTTP/1.1\r\n",
		"SSH, bare LF":         "SSH-2.0-Go\n" + keyExchange,
		"PostgreSQL":           pgMessage(3<<16, "user\x00me\x00database\x00x y\x00\x00") + "p\x00",
		"PostgreSQL, no TLS":   pgMessage(80877103, "") + pgMessage(3<<16|2, "user\x00me\x00\x00"),
		"PostgreSQL, TLS":      pgMessage(80877103, "") + string(helloFor(t, "allowed.example")),
		"PostgreSQL, cancel":   pgMessage(80877102, "\x00\x00\x00\x01\x00\x00\x00\x02"),
		"MongoDB":              "\x20\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\xdd\x07\x00\x00data",
		"Redis":                "*1\r\n$4\r\nPING\r\n",
		"AMQP":                 otherProtocol,
		"AMQP 1.0":             "AMQP\x03\x01\x00\x00",
		"MQTT":                 "\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
		"TLS":                  string(helloFor(t, "allowed.example")),
		"TLS, in many records": string(splitHello(helloFor(t, "allowed.example"), 7)),
	} {
		if got := send(text); string(got) != text {
			t.Errorf("%s: the server got %q, want %q", what, got, text)
		}
	}
}

// splitHello writes a handshake's message in records of n bytes.
func splitHello(record []byte, n int) (out []byte) {
	for message := record[5:]; len(message) > 0; {
		size := min(n, len(message))
		out = append(append(out, 22, 3, 1, 0, byte(size)), message[:size]...)
		message = message[size:]
	}
	return out
}

// A protocol whose server speaks first passes, however slowly. But TLS that begins in its
// midst must name an allowed host. If a server of HTTP or TLS speaks first, that makes
// nothing pass.
func TestServerFirst(t *testing.T) {
	greetings := make(chan string, 1)
	l := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, l, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, <-greetings)
		echo(c)
	})
	w := enforced(t, "allowed.example", "deny denied.example")
	w.lookup(t, "allowed.example")
	open := func(greeting string) net.Conn {
		greetings <- greeting
		c, err := w.dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(lastResort))
		if _, err := io.ReadFull(c, make([]byte, len(greeting))); err != nil {
			t.Fatal(err)
		}
		return c
	}
	passes := func(c net.Conn, text string) {
		t.Helper()
		_, _ = io.WriteString(c, text)
		got := make([]byte, len(text))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	const greeting = "220 hello\r\n"
	for _, text := range []string{"EHLO me\r\n", "x\r\n", "\x00\x01binary", "\x16", "\x16\x03", "a1 LOGIN x y\r\n", "USER x\r\n"} {
		c := open(greeting)
		passes(c, text)
		passes(c, "more\r\n")
		_ = c.(*net.TCPConn).CloseWrite()
		if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
			t.Errorf("%q: at the end %q, %v", text, rest, err)
		}
	}
	c := open(greeting)
	passes(c, strings.Repeat("0123456789abcdef", 500)+"\n")
	passes(c, strings.Repeat("0123456789abcdef", 1000))

	// A line is held until it can't be a request any more.
	c = open(greeting)
	for _, b := range []byte("EHLO me\r") {
		_, _ = c.Write([]byte{b})
	}
	_, _ = io.WriteString(c, "\n")
	if got, err := io.ReadAll(io.LimitReader(c, 9)); err != nil || string(got) != "EHLO me\r\n" {
		t.Errorf("a line in pieces: got %q, %v", got, err)
	}
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for _, text := range []string{preface, "GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n", "\r\n\nGET /\r\n"} {
		c := open(greeting)
		for _, b := range []byte(text) {
			if _, err := c.Write([]byte{b}); err != nil {
				break
			}
		}
		if got, _ := io.ReadAll(c); len(got) > 0 { // a write may have had the error
			t.Errorf("%q in pieces: got %q", text, got)
		}
		w.refused(t, text, "out of turn", "")
	}
	for _, endless := range []string{strings.Repeat("x", maxFirstLine+1), strings.Repeat("\r\n", maxFirstLine)} {
		c := open(greeting)
		_, _ = io.WriteString(c, endless)
		if got, err := io.ReadAll(c); err == nil || len(got) > 0 {
			t.Errorf("%.9q and so on: got %q, %v", endless, got, err)
		}
		w.refused(t, endless[:9], "out of turn", "")
	}

	// STARTTLS, at once or in pieces.
	allowed, denied := string(helloFor(t, "allowed.example")), string(helloFor(t, "denied.example"))
	c = open(greeting)
	passes(c, "STARTTLS\r\n")
	passes(c, allowed)
	passes(c, denied) // which is data by now
	for _, first := range []string{"STARTTLS\r\n", "STARTTLS\r\n" + denied[:1], "STARTTLS\r\n" + denied[:3], "STARTTLS\r\n" + denied[:5]} {
		c := open(greeting)
		passes(c, first)
		_, _ = io.WriteString(c, strings.TrimPrefix("STARTTLS\r\n"+denied, first))
		if got, err := io.ReadAll(c); err == nil || len(got) > 0 {
			t.Errorf("STARTTLS after %q: got %q, %v", first, got, err)
		}
		w.refused(t, "STARTTLS", "deny denied.example", "denied.example")
	}
	for _, unasked := range []string{"HTTP/1.1 408 Request Timeout\r\n\r\n", "<html>", "\x15\x03\x03\x00\x02\x02\x50",
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64", "\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x0c\x04"} {
		c := open(unasked)
		_, _ = io.WriteString(c, "x")
		if got, err := io.ReadAll(c); err == nil || len(got) > 0 {
			t.Errorf("after %q: got %q, %v", unasked, got, err)
		}
		w.refused(t, unasked, "unknown protocol", "")
	}
}

// No upgrade but that to a WebSocket reaches a server, and no other one is believed:
// requests for other names could follow it.
func TestUpgrades(t *testing.T) {
	l := listenIn(t, internetNS, publicIP+":0")
	asked := make(chan string, 1)
	serveTCP(t, l, func(c *net.TCPConn) { // it says 101, whatever it is asked
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		asked <- r.Header.Get("Upgrade") + r.Header.Get("Http2-Settings")
		_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			r.Header.Get("X-Pretend"), base64.StdEncoding.EncodeToString([]byte("wrong")))
		_, _ = io.Copy(c, c)
	})
	w := enforced(t, "allowed.example")
	w.lookup(t, "allowed.example")
	for header, reaches := range map[string]string{
		"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nX-Pretend: h2c\r\n":                                  "",
		"Upgrade: websocket, h2c\r\nSec-WebSocket-Key: a\r\nX-Pretend: h2c\r\n":                                   "",
		"Upgrade: websocket\r\nUpgrade: h2c\r\nSec-WebSocket-Key: a\r\nX-Pretend: h2c\r\n":                        "",
		"Upgrade: TLS/1.0\r\nX-Pretend: TLS/1.0\r\n":                                                              "",
		"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Pretend: websocket\r\n":           "websocket",
		"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Pretend: websocket, nonsense\r\n": "websocket",
	} {
		c, err := w.dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(lastResort))
		_, _ = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade, HTTP2-Settings\r\n%s\r\n", header)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusBadGateway {
			t.Errorf("%q: got %v, %v, want 502", header, resp, err)
		}
		if got := <-asked; got != reaches {
			t.Errorf("%q: the server saw %q", header, got)
		}
		_ = c.Close()
	}
}

// QUIC and DTLS do not pass to a name: the gateway can't read the host that they name.
func TestDatagramNames(t *testing.T) {
	for text, want := range map[string]bool{
		"\xc0\x00\x00\x00\x01\x08": true,
		"\xe0\x00\x00\x00\x01\x08": true,
		"\xd3\x6b\x33\x43\xcf":     true,
		"\xff\xff\x00\x00\x1d":     true,
		"\xc3Q046":                 true,
		"\x16\xfe\xff\x00\x00":     true,
		"\x14\xfe\xfd\x00\x00":     true, // records that a handshake may follow
		"\x3f\xfe\xfd\x00\x00":     true,
		"junk, 13 byte\x16\xfe\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x40\x01\x00": true, // which servers pass over
		"junk, 13 byte\x16\xfe\xfd\x00\x01\x00\x00\x00\x00\x00\x00\x00\x40\x01\x00": false,
		"\xc3\xab\x01\x00\x00\x01":         false, // DNS
		"\x1b\x00\x00\x00\x00":             false, // NTP
		"\x01\x00\x00\x00\x01\x02\x03\x04": false, // WireGuard
		"":                                 false,
	} {
		if got := namesHost([]byte(text)); got != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

// inPieces fails if a grammar, or one that it leads to, decides differently for bytes one
// by one and for all at once. It returns how many bytes pass as they came.
func inPieces(t *testing.T, b []byte, g grammar) (passed int) {
	t.Helper()
	for passed < len(b) {
		rest := b[passed:]
		whole := g(rest)
		for i := 1; i < len(rest); i++ {
			part := g(rest[:i])
			if part.kind == unknown && i <= maxHello {
				continue
			}
			if part.kind != whole.kind || part.n != whole.n {
				t.Fatalf("%q is %d, and %d after %d bytes", rest, whole.kind, part.kind, i)
			}
			break
		}
		if whole.kind == opaque {
			return len(b)
		}
		if whole.kind != stage {
			break
		}
		passed, g = passed+whole.n, whole.next
	}
	return passed
}

// The kind of a connection does not depend on how its first bytes are split into pieces.
// And in bytes that pass as they came, even the most lenient server finds no request.
func FuzzBegin(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\r\nPOST /x HTTP/1.0\n", "SSH-2.0-x\r\n" + keyExchange, pgMessage(3<<16, "user\x00me\x00\x00"),
		pgMessage(80877103, "") + pgMessage(80877102, "\x00\x00\x00\x01\x00\x00\x00\x02"), "*1\r\n$4\r\nPING\r\n", otherProtocol, "\x10\x0c\x00\x04MQTT\x04",
		"\x20\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\xdd\x07\x00\x00", "PROXY TCP4 1.2.3.4 1.2.3.4 1 1\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x00GET / HTTP/1.1\r\nHost: b\r\n\r\n", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "\tGET\v/\fHTTP/1.1\nHost : b\n\n",
	} {
		f.Add([]byte(s))
	}
	for _, s := range []string{
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "SSH-2.0-x\r\r\n" + keyExchange, "EHLO me\r\nSTARTTLS\r\n", "x", "S",
		"\x16\x03\x01\x00\xff\x01\x00\x01\x00\x00\x00\x00\xdd\x07\x00\x00" + strings.Repeat("x", 300), // as MongoDB, too
		strings.Repeat("x", maxFirstLine+9) + "\n", strings.Repeat("x", maxFirstLine+9) + "\x00", strings.Repeat("\n", maxFirstLine+9) + "GET /\n",
	} {
		f.Add([]byte(s))
	}
	f.Add(helloFor(f, "a.example"))
	f.Fuzz(func(t *testing.T, b []byte) {
		passed := inPieces(t, b, begin)
		inPieces(t, b, greeted)
		if is, hosts := lenient(bytes.Clone(b[:passed])); is {
			t.Fatalf("%q passed, in which a server may see a request for %q", b[:passed], hosts)
		}
		if _, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b))); err == nil && begin(b).kind != httpRequest {
			t.Fatalf("%q is a request, and was taken for %d", b, begin(b).kind)
		}
		if hello, err := parseHello(bytes.NewReader(b)); err == nil && begin(b).kind != tlsHello {
			t.Fatalf("%q is a handshake for %q, and was taken for %d", b, hello.ServerName, begin(b).kind)
		}
	})
}

// A handshake is found whatever the second byte of its record's version says, and not in
// what only looks like one.
func TestFindHello(t *testing.T) {
	for text, want := range map[string]int{
		"\x16\x03\x01\x01\x00\x01\x00\x00\xfc":     0,
		"\x16\x03\xff\x01\x00\x01\x00\x00\xfc":     0,
		"STARTTLS\r\n\x16\x03\x05\x01\x00\x01\x00": 10,
		"\x16\x03\x01\x00\x01\x01\x16":             0, // in records of a byte each
		"\x16\x03\x01\x01\x00\x02\x00\x00\xfc":     -1,
		"\x16\x03\x01\x01\x00\x01\x80\x00\xfc":     -1,
		"\x16\x03\x01\xff\x00\x01\x00\x00\xfc":     -1,
		"\x16\x03\x01\x01\x00\x01":                 -1, // it may go on
	} {
		if got := findHello([]byte(text)); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}
