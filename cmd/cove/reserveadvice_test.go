package main

import (
	"strings"
	"testing"
)

// hog takes more memory than the disk has left, and writes until it is stopped.
const hog = `
import os, time
memory = os.urandom(300 << 20)
f = open('big', 'wb', buffering=0)
while True: f.write(os.urandom(1 << 20)); time.sleep(0.02)
`

// TestDiskReserveAdvice: the disk has no room for the memory of a sprite that is held because
// of the reserve. The advice that cove gives then makes room, also if somebody has taken the reserve.
func TestDiskReserveAdvice(t *testing.T) {
	for name, all := range map[string]bool{"reserve": false, "nothing": true} {
		t.Run(name, func(t *testing.T) {
			l := newLimitedOf(t, "1g", "--disk-reserve", "128M")
			l.fillDisk(t, 500<<20)
			l.run("", "cove", "create", "wild")
			l.run("", "cove", "exec", "-s", "wild", "--detach", "--", "python3", "-c", hog)
			await(t, "the sprite is held", func() bool { i := l.info("wild").Cove; return i.Held != nil && i.Paused })
			if all {
				l.fillUp()
			}
			for _, args := range [][]string{{"exec", "-s", "wild", "--", "rm", "big"}, {"suspend", "wild"}} {
				out, code := l.try("", "cove", args...)
				if code != 6 || !strings.Contains(out, "cove restart wild") {
					t.Errorf("%v: exit %d\n%s", args, code, out)
				}
			}
			l.run("", "cove", "restart", "wild")
			l.run("", "cove", "exec", "-s", "wild", "--", "rm", "big")
			if i := l.info("wild").Cove; i.Held != nil {
				t.Errorf("it is held: %+v", i.Held)
			}
			l.writes(t)
		})
	}
}
