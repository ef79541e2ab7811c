package main

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/sandbox"
	"gvisor.dev/gvisor/runsc/specutils"
)

const moveVerb = "move"

// move does the work of create, pause, checkpoint --leave-running and restore --detach
// in one process. The process starts before the sandbox is paused, because each call
// of runsc takes some 10 ms until it begins.
//
// It reads orders from descriptor 3, one a line, and answers each on descriptor 4. An
// answer is a line that is empty or says what went wrong. move ends when its orders
// end.
type move struct {
	from   string // the container that is moved
	bundle string // of the next one
	image  string // a folder for the memory

	conf *config.Config
	old  *container.Container
	next *container.Container
}

func (*move) Name() string     { return moveVerb }
func (*move) Synopsis() string { return "move a container's programs to another, as ordered" }
func (*move) Usage() string {
	return "move --from=ID --bundle=DIR --image-path=DIR <container id> - create, pause, save and restore, as ordered on descriptor 3\n"
}

func (m *move) SetFlags(f *flag.FlagSet) {
	f.StringVar(&m.from, "from", "", "the container to move from")
	f.StringVar(&m.bundle, "bundle", "", "the bundle of the next container")
	f.StringVar(&m.image, "image-path", "", "folder for the memory")
}

// FetchSpec says that there is no container yet. cove's containers have no
// annotations, so the configuration does not depend on the container.
func (*move) FetchSpec(*config.Config, *flag.FlagSet) (string, *specs.Spec, error) {
	return "", nil, nil
}

func (m *move) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if f.NArg() != 1 || m.from == "" || m.bundle == "" || m.image == "" {
		f.Usage()
		return subcommands.ExitUsageError
	}
	// No sandbox may hold them: the shim waits for the end of the answers.
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	orders, answers := bufio.NewScanner(os.NewFile(3, "orders")), os.NewFile(4, "answers")
	m.conf = args[0].(*config.Config)
	for orders.Scan() {
		said := ""
		if err := m.carryOut(orders.Text(), f.Arg(0)); err != nil {
			said = fmt.Sprintf("%q", err.Error())
		}
		if _, err := fmt.Fprintln(answers, said); err != nil {
			return util.Errorf("answering: %v", err)
		}
	}
	return subcommands.ExitSuccess
}

func (m *move) carryOut(order, id string) (err error) {
	switch order {
	case "create":
		spec, err := specutils.ReadSpec(m.bundle, m.conf)
		if err != nil {
			return err
		}
		if m.next, err = container.New(m.conf, container.Args{ID: id, Spec: spec, BundleDir: m.bundle}); err != nil {
			return err
		}
		m.old, err = container.Load(m.conf.RootDir, container.FullID{SandboxID: m.from, ContainerID: m.from}, container.LoadOpts{Exact: true})
		return err
	case "pause":
		return pause(m.old)
	case "save":
		return m.old.Checkpoint(m.conf, m.image, sandbox.CheckpointOpts{Resume: true})
	case "restore":
		return m.next.Restore(m.conf, m.image, false, false, nil)
	}
	return fmt.Errorf("unknown order %q", order)
}
