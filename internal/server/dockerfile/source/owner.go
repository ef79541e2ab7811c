package source

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"
)

// maxAccounts is how much of an image's /etc/passwd or /etc/group is read.
const maxAccounts = 1 << 20

// owner are the numbers of a --chown, or of a USER. A user without a group has the group of
// /etc/passwd by name, and by number the same number, as BuildKit has it.
func owner(parent Tree, text string) (uid, gid int, err error) {
	user, group, grouped := strings.Cut(text, ":")
	if uid, err = number(user); err != nil {
		fields, err := account(parent, "etc/passwd", user)
		if err != nil {
			return 0, 0, err
		}
		if len(fields) < 4 {
			return 0, 0, refused("the image's /etc/passwd has a bad line for %.100q", user)
		}
		if uid, err = number(fields[2]); err != nil {
			return 0, 0, err
		}
		if gid, err = number(fields[3]); err != nil {
			return 0, 0, err
		}
	} else {
		gid = uid
	}
	if !grouped || group == "" {
		return uid, gid, nil
	}
	if gid, err = number(group); err == nil {
		return uid, gid, nil
	}
	fields, err := account(parent, "etc/group", group)
	if err != nil {
		return 0, 0, err
	}
	if len(fields) < 3 {
		return 0, 0, refused("the image's /etc/group has a bad line for %.100q", group)
	}
	gid, err = number(fields[2])
	return uid, gid, err
}

func number(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, refused("%.100q is not the number of a user or group", text)
	}
	return int(n), nil
}

// account is the line of a name in a file of accounts.
func account(parent Tree, file, name string) ([]string, error) {
	at, err := follow(parent.Lstat, file)
	if err != nil {
		return nil, err
	}
	f, err := parent.Open(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refused("the image has no /%s to find %.100q in", file, name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxAccounts))
	lines.Buffer(nil, maxAccounts)
	for lines.Scan() {
		if fields := strings.Split(lines.Text(), ":"); fields[0] == name {
			return fields, nil
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, refused("the image's /%s has no %.100q", file, name)
}
