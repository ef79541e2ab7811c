package guest

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
)

// account is a user of the sandbox.
type account struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32 // all groups, gid among them
	home   string
	shell  string
}

// accounts is the user database, /etc/passwd and /etc/group, read again whenever
// one of them has changed.
type accounts struct {
	mu     sync.Mutex
	stamp  [2]fileStamp
	users  []account
	groups map[string]uint32
}

type fileStamp struct {
	mtime time.Time
	size  int64
}

// lookup finds a user by name or number. A number that nobody has is a user
// without a name, as it is for the kernel; boot.User exists always.
func (a *accounts) lookup(user string) (account, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh()
	uid, err := strconv.ParseUint(user, 10, 31)
	for _, u := range a.users {
		if u.name == user || err == nil && u.uid == uint32(uid) {
			return u, true
		}
	}
	if user == boot.User || err == nil && uid == boot.UID {
		return account{boot.User, boot.UID, boot.GID, []uint32{boot.GID}, boot.Home, "/bin/bash"}, true
	}
	if err == nil {
		return account{user, uint32(uid), uint32(uid), []uint32{uint32(uid)}, "/", "/bin/sh"}, true
	}
	return account{}, false
}

// group finds a group's number.
func (a *accounts) group(name string) (uint32, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh()
	gid, ok := a.groups[name]
	return gid, ok
}

func (a *accounts) refresh() {
	names := [2]string{"/etc/passwd", "/etc/group"}
	var now [2]fileStamp
	for i, name := range names {
		if st, err := os.Stat(name); err == nil {
			now[i] = fileStamp{st.ModTime(), st.Size()}
		}
	}
	if a.groups != nil && now == a.stamp {
		return
	}
	a.stamp = now
	passwd, _ := readBounded(names[0]) // a sandbox without a user database has numbers only
	group, _ := readBounded(names[1])
	a.users, a.groups = parseAccounts(passwd, group)
}

// readBounded reads a regular file of at most 4 MiB. Root in the sandbox may have put
// anything in its place: a pipe would hold up the guest, and with it a wake.
func readBounded(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > 4<<20 || !st.Mode().IsRegular() {
		return nil, os.ErrInvalid
	}
	return io.ReadAll(io.LimitReader(f, 4<<20))
}

func parseAccounts(passwd, group []byte) ([]account, map[string]uint32) {
	groups := map[string]uint32{}
	members := map[string][]uint32{}
	for line := range lines(group) {
		f := strings.Split(line, ":")
		if len(f) < 4 {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		groups[f[0]] = uint32(gid)
		for user := range strings.SplitSeq(f[3], ",") {
			if user = strings.TrimSpace(user); user != "" {
				members[user] = append(members[user], uint32(gid))
			}
		}
	}
	var users []account
	for line := range lines(passwd) {
		f := strings.Split(line, ":")
		if len(f) < 7 {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		u := account{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5], shell: f[6]}
		u.groups = append([]uint32{u.gid}, members[u.name]...)
		slices.Sort(u.groups)
		u.groups = slices.Compact(u.groups)
		users = append(users, u)
	}
	return users, groups
}

// lines yields the lines of a small file.
func lines(data []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		sc := bufio.NewScanner(bytes.NewReader(data))
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			if !yield(sc.Text()) {
				return
			}
		}
	}
}
