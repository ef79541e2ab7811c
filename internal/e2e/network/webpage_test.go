package network

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

// outside returns a client of the island's server for programs of this machine, such as a
// browser.
func (i *island) outside() *cove.Client {
	i.T.Helper()
	c := i.Client()
	inside, err := url.Parse(c.URL)
	if err != nil {
		i.T.Fatal(err)
	}
	ferry := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(inside)
			r.Out.Host = r.In.Host
		},
		Transport: &http.Transport{DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
			err = i.Within(func() error {
				conn, err = net.Dial(network, addr)
				return err
			})
			return conn, err
		}},
		FlushInterval: -1,
	})
	i.T.Cleanup(ferry.Close)
	c.URL = ferry.URL
	return c
}

// TestAllowThis: the web page shows a download that a sprite's rules refuse, with a button that
// opens only its target. The page says beforehand exactly what it will open. The targets are a
// name, a private address that a name led to, and an IPv6 address.
func TestAllowThis(t *testing.T) {
	i := newIsland(t)
	i.listen(i.sea, "10.1.2.3:8000", func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = fmt.Fprint(conn, "HTTP/1.0 200 OK\r\n\r\nfrom within")
		}
	})
	i.sprite("paint")
	i.policy("paint", allow("allowed.test", "inward.test")...)
	c := i.outside()
	paint := c.Sprite("paint")
	rules := func() []string {
		t.Helper()
		p, err := paint.NetworkPolicy(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, r := range p.Rules {
			all = append(all, fmt.Sprint(r))
		}
		return all
	}
	b := webtest.Start(t)
	desktop, phone := b.Open(c, webtest.Desktop), b.Open(c, webtest.Phone)
	for _, test := range []struct {
		page         *webtest.Page
		file, target string // its URL, and its target as the log shows it
		rule, opens  string
		want         string // the file's content
		added        sprites.NetworkRule
	}{
		{desktop, "http://apart.test/tool", "apart.test (lookup)", "apart.test", "the name apart.test, on every port, by TCP", "host apart.test", sprites.NetworkRule{Domain: "apart.test", Action: "allow"}},
		{phone, "http://inward.test:8000/tool", "inward.test:8000 (10.1.2.3)", "10.1.2.3:8000", "the address 10.1.2.3, on port 8000 alone, by TCP", "from within", sprites.NetworkRule{CIDR: "10.1.2.3", Action: "allow", Ports: []string{"8000"}}},
		{phone, "http://[" + islandOther6 + "]/tool", "[" + islandOther6 + "]:80", "[" + islandOther6 + "]:80", "the address " + islandOther6 + ", on port 80 alone, by TCP", "host [" + islandOther6 + "]", sprites.NetworkRule{CIDR: islandOther6, Action: "allow", Ports: []string{"80"}}},
	} {
		page, before := test.page, rules()
		page.Goto("/web/sprites/paint/network")
		if out, code := i.Try("", "cove", "exec", "-s", "paint", "curl", "-sSf", test.file); code == 0 {
			t.Fatalf("%s is not refused: %s", test.file, out)
		}
		button := fmt.Sprintf(`[...document.querySelectorAll("#network-log li")].find(li => li.querySelector("strong").innerText === %q)?.querySelector("button")`, test.target)
		page.Until("the refusal of "+test.target+" is shown", button)
		page.Eval(button+".click()", nil) // whatever comes meanwhile moves it
		page.Until("the page says what is opened", fmt.Sprintf(`document.querySelector("#network-allow-here strong")?.innerText === %q`, "It opens "+test.opens+"."))
		page.Until("it is no wider than its window", `document.documentElement.scrollWidth <= innerWidth`)
		if now := rules(); !slices.Equal(now, before) {
			t.Errorf("%s: before the yes the rules are %v, not %v", test.target, now, before)
		}
		page.Click("#allow-it")
		page.Wait(fmt.Sprintf(`[aria-label="Remove allow %s"]`, strings.NewReplacer("[", "", "]:", ":").Replace(test.rule)))
		if now := rules(); !slices.Equal(now, append(before, fmt.Sprint(test.added))) {
			t.Errorf("%s: the rules were %v, and are %v", test.target, before, now)
		}
		var got string
		e2e.Await(t, "an answer of the resolver", func() bool { // curl waits for it some seconds
			got, _ = i.Try("", "cove", "exec", "-s", "paint", "curl", "-sSf", test.file)
			return !strings.Contains(got, "curl: (6)")
		})
		if got != test.want {
			t.Errorf("%s has %q, want %q", test.file, got, test.want)
		}
	}
	others := []string{
		"tcp denied.test:80", "udp apart.test:7", "tcp " + islandPublic + ":80", "tcp inward.test:80", "udp 10.1.2.3:9", "tcp 172.16.0.9:80",
		"tcp [" + islandOther6 + "]:7", "tcp [" + islandPublic6 + "]:80",
	}
	out := i.Run("", "cove", append([]string{"exec", "-s", "paint", "--env", "PATIENCE=1s", "sh", "-c", "for to; do ~/prober $to x & done; wait", "sh"}, others...)...)
	if strings.Count("\n"+out, "\nno ") != len(others) {
		t.Errorf("of %d other targets not each was refused:\n%s", len(others), out)
	}
	if n := i.inward.Load(); n != 0 {
		t.Errorf("%d connections got inward", n)
	}
}
