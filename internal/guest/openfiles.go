package guest

import (
	"cmp"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/sprites"
)

// openFilesLimit is how long a look for open files takes at most: a checkpoint waits
// for it.
const openFilesLimit = time.Second

// maxOpenNamed is how many files of each kind are named: the largest.
const maxOpenNamed = 10

// getOpenFiles lists the files of the disk that a checkpoint has more work with than
// with others: those that are open for writing, and those that have no name any more.
func (s *Server) getOpenFiles(w http.ResponseWriter, _ *http.Request) error {
	return respond(w, openFiles(processes(), time.Now().Add(openFilesLimit)))
}

// openFiles looks through the open files of processes, as many as it can until then.
func openFiles(pids []int, until time.Time) sprites.OpenFiles {
	type id struct{ dev, ino uint64 }
	seen := map[id]bool{}
	var all sprites.OpenFiles
	files := maxFiles
	for _, pid := range pids {
		left := min(files, maxFilesEach)
		files -= left
		eachFile(pid, &left, func(fd int) bool {
			var st unix.Stat_t
			name := "/proc/" + strconv.Itoa(pid) + "/fd/" + strconv.Itoa(fd)
			if unix.Stat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && !seen[id{st.Dev, st.Ino}] {
				file, gone, ok := burden(pid, fd, &st)
				if ok {
					seen[id{st.Dev, st.Ino}] = true
					count(&all, file, gone)
				}
			}
			return time.Now().Before(until)
		})
		if files += max(left, 0); files <= 0 || !time.Now().Before(until) {
			break
		}
	}
	all.Writable, all.Unlinked = largest(all.Writable), largest(all.Unlinked)
	return all
}

func count(all *sprites.OpenFiles, file sprites.OpenFile, gone bool) {
	list, sum := &all.Writable, &all.WritableBytes
	if gone {
		list, sum = &all.Unlinked, &all.UnlinkedBytes
	}
	*sum += file.Bytes
	if *list = append(*list, file); len(*list) > 10*maxOpenNamed {
		*list = largest(*list)
	}
}

// burden describes an open regular file, if it is one that a checkpoint has more work
// with. What is in memory alone is not: it is a part of the memory.
func burden(pid, fd int, st *unix.Stat_t) (file sprites.OpenFile, gone, ok bool) {
	name := "/proc/" + strconv.Itoa(pid) + "/fd/" + strconv.Itoa(fd)
	path, err := os.Readlink(name)
	if err != nil { // it was closed meanwhile
		return file, gone, false
	}
	path, gone = strings.CutSuffix(path, " (deleted)") // gVisor goes on counting one link
	if !gone && !forWriting(pid, fd) {
		return file, gone, false
	}
	var in unix.Statfs_t
	if unix.Statfs(name, &in) != nil || in.Type == unix.TMPFS_MAGIC {
		return file, gone, false
	}
	file.Path, file.Bytes = path, st.Size
	if !gone { // its holes are not copied
		file.Bytes = min(st.Size, st.Blocks*512)
	}
	return file, gone, true
}

// forWriting reports whether a process has a file open for writing.
func forWriting(pid, fd int) bool {
	info, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(info)) {
		if text, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(text), 8, 64)
			return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}

func largest(files []sprites.OpenFile) []sprites.OpenFile {
	slices.SortFunc(files, func(a, b sprites.OpenFile) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return files[:min(len(files), maxOpenNamed)]
}
