package cli

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// A resolver that refuses counts as one that answers. One where nothing listens does not.
func TestNamesCheck(t *testing.T) {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeRefused))
	})}
	done := make(chan error, 1)
	go func() { done <- server.ActivateAndServe() }()
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	// On a slow machine, an answer may come too late. Then it is asked again.
	answered := func(servers ...string) check {
		for end := time.Now().Add(lastResort); ; {
			began := time.Now()
			c := namesCheck(t.Context(), servers, port)
			if silent := c.Level != levelOK && strings.Contains(c.Detail, "127.0.0.1"); !silent || time.Since(began) < dnsLimit || began.After(end) {
				return c
			}
		}
	}
	if c := answered("127.0.0.1"); c.Level != levelOK {
		t.Errorf("got %+v", c)
	}
	c := answered("127.0.0.1", "127.0.0.2")
	if c.Level != levelWarn || !strings.Contains(c.Detail, "127.0.0.2") || strings.Contains(c.Detail, "127.0.0.1") || strings.Contains(c.Detail, "look up") {
		t.Errorf("one of two is silent: got %+v", c)
	}
	if c := namesCheck(t.Context(), []string{"127.0.0.2"}, port); c.Level != levelWarn || !strings.Contains(c.Detail, "can't look up external names") || c.Fix == "" {
		t.Errorf("the only one is silent: got %+v", c)
	}
	if c := namesCheck(t.Context(), nil, port); c.Level != levelWarn || !strings.Contains(c.Detail, "names no resolver") {
		t.Errorf("there is none: got %+v", c)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the resolver ended: %v", err)
	}
}
