package main

import (
	"embed"
	"encoding/json"
	"runtime"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	boot "gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

// filters has the system call filters of a sandbox and of a gofer, as programs for the kernel.
// There is a file for some architectures. TestFilters writes the file of its own architecture,
// and compares it with gVisor's rules.
//
//go:embed filters
var filters embed.FS

// A filterSet is the content of such a file. gVisor finds a program by its name. The name has
// the options that the program is for.
type filterSet struct {
	Boot, Gofer []precompiledseccomp.Program
}

// The programs that gVisor has at hand: those of its own build. A build by the go command has none.
var (
	//go:linkname bootPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
	bootPrograms map[string]precompiledseccomp.Program
	//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
	goferPrograms map[string]precompiledseccomp.Program
)

// giveFilters spares a sandbox and its gofer 10 ms of compiling rules at their start. They compile
// them if they have other options or another architecture.
func giveFilters() {
	set, err := readFilters(runtime.GOARCH)
	if err != nil {
		return
	}
	boot.ListPrecompiled() // the first call makes the map
	gofer.ListPrecompiled()
	for _, p := range set.Boot {
		bootPrograms[p.Name] = p
	}
	for _, p := range set.Gofer {
		goferPrograms[p.Name] = p
	}
}

func readFilters(arch string) (set filterSet, err error) {
	text, err := filters.ReadFile("filters/" + arch + ".json")
	if err == nil {
		err = json.Unmarshal(text, &set)
	}
	return set, err
}
