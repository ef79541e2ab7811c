package ports

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestEachListening(t *testing.T) {
	rest := " 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0        "
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   7: 0100007F:0BB8" + rest + "8 1 0000000000000000 0 0 0 0 -1\n" +
		"  13: 0100007F:DF56 0100007F:0BB8 01 00000000:00000000 00:00000000 00000000  1001        0       14 1 0000000000000000\n" + // connected
		"  12: 0100007F:0BBD 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0       13 1 0000000000000000\n" + // bound
		"   9: 00000000000000000000000000000000:0BBA" + rest + "10 1\n" +
		"  11: 0000000000000000FFFF00000100007F:0BBC" + rest + "12 1\n" +
		strings.Repeat("   1: 0100007F:DF56 0100007F:0BB8 01 00000000:00000000 00:00000000 00000000  1001 0 14 1\n", 1000) +
		"  10: 00000000000000000000000001000000:0BBB" + rest + "11\n" +
		"   8: 00000000:FFFF" + rest + "18446744073709551615 1\n" +
		"   1: 0100007F:0000" + rest + "1\n   1: 0100007F:10000" + rest + "1\n   1: 01007F:0001" + rest + "1\n   1: 0100007G:0001" + rest + "1\n" +
		"   1: 0100007F" + rest + "1\n   1: 0100007F:0001" + rest + "-1\n   1: 0100007F:0001 00000000:0000 0A\n\n0A\n" +
		"   8: 00000000:0001" + rest + "cut"
	want := []socket{
		{8, netip.MustParseAddrPort("127.0.0.1:3000")},
		{10, netip.MustParseAddrPort("[::]:3002")},
		{12, netip.MustParseAddrPort("127.0.0.1:3004")},
		{11, netip.MustParseAddrPort("[::1]:3003")},
		{1<<64 - 1, netip.MustParseAddrPort("0.0.0.0:65535")},
	}
	name := filepath.Join(t.TempDir(), "tcp")
	if err := os.WriteFile(name, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	err := eachListening(name, func(got socket) {
		if len(want) == 0 || got != want[0] {
			t.Fatalf("got %v, want the first of %v", got, want)
		}
		want = want[1:]
	})
	if err != nil || len(want) > 0 {
		t.Errorf("missing %v, %v", want, err)
	}
	if err := os.WriteFile(name, []byte(strings.Repeat("x", 2*chunk)), 0o600); err != nil {
		t.Fatal(err)
	}
	if eachListening(name, func(socket) {}) == nil {
		t.Error("a line without an end is no error")
	}
}

// Without a follower nothing runs.
func TestPortWatcherEnds(t *testing.T) {
	w := New(func() map[int]string { return nil }, time.Minute)
	for range 3 {
		f, g := w.Follow(""), w.Follow("")
		<-f.changed
		<-g.changed
		f.Leave()
		g.Leave()
		g.Leave()
		w.wg.Wait()
	}
}
