// Package users knows the users of the sandbox, and touches files with their rights.
package users

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/guest/smallfile"
	"github.com/cove-dev/cove/internal/lib/boot"
)

// User is a user of the sandbox.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // all groups, GID among them
	Home   string
	Shell  string
}

// Database is the user database, /etc/passwd and /etc/group, read again whenever
// one of them has changed. The zero value is ready, and safe for concurrent use.
type Database struct {
	// Own is the user of commands unless a call says otherwise; nil: boot.User. That user
	// always exists. Set it before use.
	Own *boot.Account

	mu     sync.Mutex
	stamp  [2]fileStamp
	users  []User
	groups map[string]uint32
}

type fileStamp struct {
	mtime time.Time
	size  int64
}

// Lookup finds a user by name or number. A number that nobody has is a user
// without a name, as it is for the kernel.
func (d *Database) Lookup(user string) (User, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	uid, err := strconv.ParseUint(user, 10, 31)
	for _, u := range d.users {
		if u.Name == user || err == nil && u.UID == uint32(uid) {
			return d.amend(u), true
		}
	}
	if own := d.own(); user == own.Name || err == nil && uint32(uid) == own.UID {
		return own, true
	}
	if user == root.Name { // whom not all images name
		return root, true
	}
	if err == nil {
		return User{user, uint32(uid), uint32(uid), []uint32{uint32(uid)}, "/", "/bin/sh"}, true
	}
	return User{}, false
}

var root = User{"root", 0, 0, []uint32{0}, "/root", "/bin/sh"}

// own is the sprite's own user, for a database without it.
func (d *Database) own() User {
	if d.Own == nil {
		return User{boot.User, boot.UID, boot.GID, []uint32{boot.GID}, boot.Home, "/bin/bash"}
	}
	return User{d.Own.Name, uint32(d.Own.UID), uint32(d.Own.GID), d.ownGroups(), d.Own.Home, d.Own.Shell}
}

// ownGroups are all groups of the sprite's own user, if the database does not say them.
func (d *Database) ownGroups() []uint32 {
	groups := []uint32{uint32(d.Own.GID)}
	for _, gid := range d.Own.Groups {
		groups = append(groups, uint32(gid))
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// amend applies the sprite's own account (Own) to a user of the database, if it is the same
// user.
func (d *Database) amend(u User) User {
	if d.Own == nil || u.Name != d.Own.Name || u.UID != uint32(d.Own.UID) {
		return u
	}
	if d.Own.Groups != nil {
		u.GID, u.Groups = uint32(d.Own.GID), d.ownGroups()
	}
	if boot.NoLogin(u.Shell) {
		u.Shell = d.Own.Shell
	}
	return u
}

// Group finds a group's number.
func (d *Database) Group(name string) (uint32, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	gid, ok := d.groups[name]
	return gid, ok
}

func (d *Database) refresh() {
	names := [2]string{"/etc/passwd", "/etc/group"}
	var now [2]fileStamp
	for i, name := range names {
		if st, err := os.Stat(name); err == nil {
			now[i] = fileStamp{st.ModTime(), st.Size()}
		}
	}
	if d.groups != nil && now == d.stamp {
		return
	}
	d.stamp = now
	passwd, _ := smallfile.Read(names[0]) // a sandbox without a user database has numbers only
	group, _ := smallfile.Read(names[1])
	d.users, d.groups = parse(passwd, group)
}

func parse(passwd, group []byte) ([]User, map[string]uint32) {
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
	var users []User
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
		u := User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5], Shell: f[6]}
		u.Groups = append([]uint32{u.GID}, members[u.Name]...)
		slices.Sort(u.Groups)
		u.Groups = slices.Compact(u.Groups)
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
