// Package proctree finds processes and their descendants, by /proc. Processes that start while
// it looks may be missing. So a caller that ends processes must look until there are none.
package proctree

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// All returns the numbers of all processes.
func All() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// Below returns the processes below root, at any depth, zombies among them.
func Below(root int) []int {
	children := map[int][]int{}
	for _, pid := range All() {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state ppid …, where the name may hold anything.
		i := bytes.LastIndexByte(stat, ')')
		if i < 0 {
			continue
		}
		if f := strings.Fields(string(stat[i+1:])); len(f) > 1 {
			if parent, err := strconv.Atoi(f[1]); err == nil {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	var out []int
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		out = append(out, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return out
}
