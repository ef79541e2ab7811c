package main

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// A ticker is a program in a sprite that writes a number to a file, tells it to a
// server outside, waits for that to repeat it, and goes on with the next one.
const ticker = `
import os, socket, sys, time
out = open('/home/sprite/count', 'a')
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
f = s.makefile('rw')
n = 0
while True:
    n += 1
    out.write('%d\n' % n); out.flush()
    f.write('%d\n' % n); f.flush()
    if f.readline() != '%d\n' % n: sys.exit('the server is gone')
    time.sleep(0.01)
`

// A speaker is one that counts to a server outside without waiting.
const speaker = `
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
n = 0
while True:
    n += 1
    s.sendall(b'%d\n' % n)
    time.sleep(0.001)
`

// A hearer is one to which a server outside counts without waiting. Of each hundred
// it says that it has heard them all.
const hearer = `
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
n = 0
for line in s.makefile('r'):
    n += 1
    if line != '%d\n' % n:
        s.sendall(b'after %d came %r\n' % (n - 1, line.encode()))
        sys.exit(1)
    if n % 100 == 0: s.sendall(b'%d\n' % n)
`

// heard is what a server has heard of a program that counts.
type heard struct {
	last  int
	gap   time.Duration // the longest between two
	wrong string        // the first that was not the next
}

// counted is a server to which a program counts.
type counted struct {
	step int // from one to the next
	echo bool
	tell bool // it counts, too

	mu sync.Mutex
	heard
	at time.Time
}

func (k *counted) serve(conn net.Conn) {
	if k.tell {
		go func() {
			tick := time.NewTicker(time.Millisecond) // there always is something on its way
			defer tick.Stop()
			for n := 1; ; n++ {
				if _, err := fmt.Fprintln(conn, n); err != nil {
					return
				}
				<-tick.C
			}
		}()
	}
	for r := bufio.NewScanner(conn); r.Scan(); {
		k.hear(r.Text())
		if k.echo {
			if _, err := fmt.Fprintln(conn, r.Text()); err != nil {
				return
			}
		}
	}
}

func (k *counted) hear(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.at.IsZero() {
		k.gap = max(k.gap, time.Since(k.at))
	}
	n, err := strconv.Atoi(text)
	if (err != nil || n != k.last+k.step) && k.wrong == "" {
		k.wrong = fmt.Sprintf("after %d came %q", k.last, text)
	}
	k.last, k.at = n, time.Now()
}

func (k *counted) now() heard {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.heard
}

// talk are a ticker, a speaker and a hearer in a sprite, and their servers.
type talk struct {
	island *island
	sprite string
	ticks  counted
	spoken counted
	told   counted
}

// talk starts all three.
func (i *island) talk(sprite string) *talk {
	i.t.Helper()
	k := &talk{island: i, sprite: sprite, ticks: counted{step: 1, echo: true}, spoken: counted{step: 1}, told: counted{step: 100, tell: true}}
	for n, p := range []struct {
		name, text string
		server     *counted
	}{{"ticker.py", ticker, &k.ticks}, {"speaker.py", speaker, &k.spoken}, {"hearer.py", hearer, &k.told}} {
		port := strconv.Itoa(97 + n)
		i.listen(i.sea, net.JoinHostPort(islandPublic, port), p.server.serve)
		i.write(p.name, p.text)
		i.run("", "cove", "cp", i.home+"/../"+p.name, sprite+":/home/sprite/"+p.name)
		i.run("", "cove", "exec", "-s", sprite, "--detach", "--", "python3", "/home/sprite/"+p.name, islandPublic, port)
	}
	k.awaitMore([3]int{})
	for _, c := range []*counted{&k.ticks, &k.spoken, &k.told} {
		c.mu.Lock()
		c.gap = 0
		c.mu.Unlock()
	}
	return k
}

// now is how far each is.
func (k *talk) now() [3]int {
	return [3]int{k.ticks.now().last, k.spoken.now().last, k.told.now().last}
}

// awaitMore waits until each of them has gone on, and nothing is missing. What was
// under way is sent again, on a busy machine after a while.
func (k *talk) awaitMore(before [3]int) {
	t := k.island.t
	t.Helper()
	goesOn := false
	defer func() {
		if !goesOn {
			out, _ := k.island.try("", "cove", "exec", "-s", k.sprite, "--", "sh", "-c", "pgrep -af python3; cat /proc/net/tcp; tail -n 1 count")
			t.Logf("they were at %v, and are at %v; in the sprite is\n%s", before, k.now(), out)
		}
	}()
	await(t, "all three go on", func() bool {
		now := k.now()
		for _, c := range []*counted{&k.ticks, &k.spoken, &k.told} {
			if wrong := c.now().wrong; wrong != "" {
				t.Fatal(wrong)
			}
		}
		return now[0] > before[0]+20 && now[1] > before[1]+100 && now[2] > before[2]+200
	})
	goesOn = true
}
