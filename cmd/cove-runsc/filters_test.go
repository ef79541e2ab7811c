package main

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"reflect"
	"runtime"
	"slices"
	"testing"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	bootfilter "gvisor.dev/gvisor/runsc/boot/filter"
	boot "gvisor.dev/gvisor/runsc/boot/filter/config"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

var update = flag.Bool("update", false, "write the filters of this architecture anew")

//go:linkname bootRules gvisor.dev/gvisor/runsc/boot/filter/config.rules
func bootRules(opt boot.Options, vars precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)

//go:linkname goferRules gvisor.dev/gvisor/runsc/fsgofer/filter/config.rules
func goferRules(opt gofer.Options, vars precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)

// These are the options that sandboxes and gofers of cove have. A gofer without a folder to serve needs less.
var (
	bootOptions  = boot.Options{Platform: (*systrap.Systrap)(nil).SeccompInfo(), HostFilesystem: true}
	goferOptions = []gofer.Options{{DirectFS: true, LisafsNeeded: true}, {DirectFS: true}}
)

func filterOf(allow, deny seccomp.SyscallRules, opts seccomp.ProgramOptions) *seccomp.Program {
	return &seccomp.Program{RuleSets: []seccomp.RuleSet{{Rules: deny.Copy()}, {Rules: allow.Copy(), Action: seccomp.Allow}}, Options: opts}
}

// TestFilters: the filters that cove-runsc brings are those that gVisor would make of its rules,
// with this process's number in them.
func TestFilters(t *testing.T) {
	if *update {
		writeFilters(t)
		return // this program has the old ones
	}
	set, err := readFilters(runtime.GOARCH)
	if errors.Is(err, fs.ErrNotExist) {
		giveFilters()
		if all := slices.Concat(bootfilter.ListPrecompiled(), goferfilter.ListPrecompiled()); len(all) > 0 {
			t.Errorf("filters of another architecture: %q", all)
		}
		return
	}
	if err != nil || len(set.Boot) != 1 || len(set.Gofer) != len(goferOptions) {
		t.Fatalf("%d and %d filters, %v", len(set.Boot), len(set.Gofer), err)
	}
	giveFilters()
	same := func(name string, p precompiledseccomp.Program, there bool, vars precompiledseccomp.Values, want *seccomp.Program) {
		t.Helper()
		got, err1 := p.RenderInstructions(vars)
		made, _, err2 := want.Build()
		if !there || err1 != nil || err2 != nil || !reflect.DeepEqual(got, made) {
			t.Errorf("%s: %v, %d steps, want %d (%v, %v); if gVisor's rules have changed: go test ./cmd/cove-runsc -run TestFilters -update", name, there, len(got), len(made), err1, err2)
		}
	}
	key := bootOptions.ConfigKey()
	p, ok := bootfilter.GetPrecompiled(key)
	allow, deny := boot.Rules(bootOptions)
	same(key, p, ok, bootOptions.Vars(), filterOf(allow, deny, boot.SeccompOptions(bootOptions)))
	for _, opt := range goferOptions {
		key := opt.ConfigKey()
		p, ok := goferfilter.GetPrecompiled(key)
		allow, deny := gofer.Rules(opt)
		same(key, p, ok, opt.Vars(), filterOf(allow, deny, seccomp.ProgramOptions{}))
	}
}

func writeFilters(t *testing.T) {
	t.Helper()
	var set filterSet
	compile := func(key string, vars precompiledseccomp.Values, make func(precompiledseccomp.Values) *seccomp.Program) precompiledseccomp.Program {
		var names []string
		for name := range vars {
			names = append(names, name)
		}
		p, err := precompiledseccomp.Precompile(key, names, make)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := compile(bootOptions.ConfigKey(), bootOptions.Vars(), func(vars precompiledseccomp.Values) *seccomp.Program {
		allow, deny := bootRules(bootOptions, vars)
		return filterOf(allow, deny, boot.SeccompOptions(bootOptions))
	})
	// The rule of systrap for rt_tgsigqueueinfo has this process's number, not the variable.
	const pid = "self_pid_low32bits"
	for i, word := range p.Bytecode32 {
		if word == uint32(os.Getpid()) && !slices.Contains(p.VarOffsets[pid], i) {
			p.VarOffsets[pid] = append(p.VarOffsets[pid], i)
		}
	}
	set.Boot = append(set.Boot, p)
	for _, opt := range goferOptions {
		set.Gofer = append(set.Gofer, compile(opt.ConfigKey(), opt.Vars(), func(vars precompiledseccomp.Values) *seccomp.Program {
			allow, deny := goferRules(opt, vars)
			return filterOf(allow, deny, seccomp.ProgramOptions{})
		}))
	}
	text, err := json.Marshal(set)
	if err == nil {
		err = os.WriteFile("filters/"+runtime.GOARCH+".json", append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
