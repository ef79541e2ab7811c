package ports

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// chunk is how much of a table is read at once.
const chunk = 32 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// eachListening calls f for each socket of a table such as /proc/net/tcp that
// listens. gVisor's tables have the form of Linux's.
func eachListening(table string, f func(socket)) error { return eachSocket(table, stateListen, f) }

// eachSocket calls f for each socket of such a table that is in a state, or without
// one for all that have a port.
func eachSocket(table, state string, f func(socket)) error {
	fd, err := syscall.Open(table, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	bufp := chunks.Get().(*[chunk]byte)
	defer chunks.Put(bufp)
	buf := bufp[:]
	for have := 0; ; {
		n, err := syscall.Read(fd, buf[have:])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		have += n
		rest := buf[:have]
		for {
			line, after, whole := bytes.Cut(rest, []byte("\n"))
			if !whole {
				break
			}
			if id, ok := parseSocket(line, state); ok {
				f(id)
			}
			rest = after
		}
		if have = copy(buf, rest); have == len(buf) {
			return io.ErrShortBuffer // a line can't be so long
		}
	}
}

const stateListen = "0A"

// parseSocket reads a line of /proc/net/tcp, udp and their like; ok is false unless
// that is a socket in this state.
func parseSocket(line []byte, state string) (id socket, ok bool) {
	var fields [10][]byte
	n := 0
	for field := range bytes.FieldsSeq(line) {
		if n == 4 && state != "" && string(fields[3]) != state {
			return socket{}, false
		}
		if n == len(fields) {
			break
		}
		fields[n] = field
		n++
	}
	if n < len(fields) {
		return socket{}, false
	}
	addr, port, found := bytes.Cut(fields[1], []byte(":"))
	number, err := strconv.ParseUint(string(port), 16, 16)
	inode, err2 := strconv.ParseUint(string(fields[9]), 10, 64)
	ip, ok := parseKernelIP(addr)
	if !found || err != nil || err2 != nil || !ok || number == 0 {
		return socket{}, false
	}
	return socket{inode, netip.AddrPortFrom(ip, uint16(number))}, true
}

// parseKernelIP reads an address as the kernel's tables have it: in words of 32
// bits, each a number in the machine's order of bytes.
func parseKernelIP(text []byte) (netip.Addr, bool) {
	var ip [16]byte
	if len(text) != 8 && len(text) != 32 {
		return netip.Addr{}, false
	}
	n, err := hex.Decode(ip[:], text)
	if err != nil {
		return netip.Addr{}, false
	}
	for word := ip[:n]; len(word) > 0; word = word[4:] {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	addr, ok := netip.AddrFromSlice(ip[:n])
	return addr.Unmap(), ok
}

// maxFiles is how many open files one search for the holders of sockets looks at. maxFilesEach
// is how many of one process. Listening sockets are among the first, and a process with very
// many files does not hide the others.
const (
	maxFiles     = 1 << 16
	maxFilesEach = 1 << 12
)

// findHolders looks through the open files of all processes, this one first, for
// sockets by their inodes. It sets pid and fd of those that it finds, and returns
// them.
func findHolders(wanted map[uint64]*listener) (found []*listener) {
	files := maxFiles
	for _, pid := range append([]int{os.Getpid()}, processes()...) {
		left := min(files, maxFilesEach)
		files -= left
		eachFile(pid, &left, func(fd int) bool {
			inode, ok := socketInode(pid, fd)
			if l := wanted[inode]; ok && l != nil {
				l.pid, l.fd = pid, fd
				found = append(found, l)
				delete(wanted, inode)
			}
			return len(wanted) > 0
		})
		if files += max(left, 0); len(wanted) == 0 || files <= 0 {
			break
		}
	}
	return found
}

// processes returns the numbers of all processes, in their order.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what could be read is better than nothing
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// eachFile calls f for each of a process's open files, until f returns false or left,
// which it counts down, is 0.
func eachFile(pid int, left *int, f func(fd int) bool) {
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		return // it has ended
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			fd, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if *left--; *left < 0 {
				return
			}
			if !f(fd) {
				return
			}
		}
		if err != nil {
			return // usually the end
		}
	}
}

// holds reports whether an open file of a process is a certain socket.
func holds(pid, fd int, inode uint64) bool {
	now, ok := socketInode(pid, fd)
	return ok && now == inode
}

// socketInode is the inode of a process's open file, if that is a socket.
func socketInode(pid, fd int) (uint64, bool) {
	var buf [64]byte
	n, err := syscall.Readlink("/proc/"+strconv.Itoa(pid)+"/fd/"+strconv.Itoa(fd), buf[:])
	if err != nil {
		return 0, false
	}
	text, ok := strings.CutPrefix(string(buf[:n]), "socket:[")
	if !ok {
		return 0, false
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
	return inode, err == nil
}
