// Cove-guest is the program inside every sandbox: its first process, and the
// supervisor of a job.
//
//	cove-guest init                    be the first process; the boot configuration is on stdin
//	cove-guest job run DIR             carry out the job described in DIR
//	cove-guest job follow DIR FROM     print the job's events from number FROM on, until its end
//	cove-guest job send DIR            hand a message, a cove.JobInputLine on stdin, to the job's agent
//	cove-guest job stop DIR            tell the job's supervisor to stop the agent and collect
//	cove-guest job finalize DIR REASON end a job whose supervisor is gone
//	cove-guest job set-up DIR          run the setup script of the job described in DIR, and nothing else of it
//	cove-guest job is-set-up DIR       say by the exit code whether that would run it (6), or has been done (0)
//	cove-guest probe [URL...]          say what the sprite is like from here, and what the URLs answer
//	cove-guest answer FILE             answer HTTP requests at a free port, which FILE gets the number of
//	cove-guest lfs clean|smudge DIR    be Git LFS's filter for one file
//	cove-guest sync                    be the sprite's half of a sync; the other one is on stdin and stdout
//	cove-guest tool serve [--role ROLE]... [--dir DIR]
//	                                   carry out calls of a model's tools; they come on stdin, the answers are on stdout
//	cove-guest tool keep               run one command, for tool serve and acp
//	cove-guest acp run --prompt FILE [--session ID] [--permissions allow|ask|deny] [--mcp NAME=PROGRAM]... CMD...
//	                                   have an agent that speaks ACP carry out a prompt; events go to file descriptor 3
//	cove-guest acp bridge CMD...       let a client of ACP, on stdin and stdout, talk with an agent here
//	cove-guest nest CMD...             run a program as root of a network of its own (package nest)
//	cove-guest docker [FLAG...]        run dockerd so
//	cove-guest step                    run a command of an image's build; the step is on stdin
//	cove-guest version
//
// Under the name sprite-env it is that command (package spriteenv).
//
// It exits with 2 on wrong usage, 1 on an error, and a job with its own code.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/guest/nest"
	"github.com/cove-dev/cove/internal/guest/probe"
	"github.com/cove-dev/cove/internal/guest/spriteenv"
	"github.com/cove-dev/cove/internal/guest/step"
	"github.com/cove-dev/cove/internal/guest/supervise"
	"github.com/cove-dev/cove/internal/lib/acp"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/filesync"
	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/sprites"
)

var errUsage = errors.New("usage: cove-guest init | job run DIR | job follow DIR FROM | job send DIR | job stop DIR | job finalize DIR REASON | job set-up DIR | job is-set-up DIR | publish | lfs clean|smudge DIR | probe [URL...] | answer FILE | sync | tool serve [--role ROLE]... [--dir DIR] | tool keep | acp run --prompt FILE [--session ID] [--permissions allow|ask|deny] [--mcp NAME=PROGRAM]... CMD... | acp bridge CMD... | nest CMD... | docker [FLAG...] | step | version")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if filepath.Base(os.Args[0]) == "sprite-env" {
		code := spriteenv.Main(ctx, filepath.Join(boot.Dir, boot.Socket), os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cove-guest:", err)
	}
	os.Exit(exitCode(err))
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch {
	case command == "init" && len(args) == 0:
		return guest.Init(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	case command == "version" && len(args) == 0:
		_, err := fmt.Fprintln(stdout, "cove-guest", sprites.Version)
		return err
	case command == "probe":
		return json.NewEncoder(stdout).Encode(probe.Run(ctx, args))
	case command == "answer" && len(args) == 1:
		return probe.Answer(ctx, args[0])
	case command == "lfs" && len(args) == 2:
		return supervise.Filter(args[0], args[1], os.Stdin, stdout)
	case command == "publish" && len(args) == 0:
		return publish(ctx, os.Stdin, stdout)
	case command == "sync" && len(args) == 0:
		return filesync.Serve(ctx, os.Stdin, stdout, func() { os.Exit(1) })
	case command == "tool" && len(args) > 0:
		return tool(ctx, args[0], args[1:], stdout)
	case command == "acp" && len(args) > 1:
		return agent(ctx, args[0], args[1:], stdout)
	case command == "nest" && len(args) > 1 && args[0] == "inside":
		return nest.Inside(args[1:])
	case command == "nest" && len(args) > 0:
		return nest.Run(ctx, []string{"/proc/self/exe", "nest"}, args, 20*time.Second)
	case command == "docker":
		return nest.Docker(ctx, []string{"/proc/self/exe", "nest"}, []string{filepath.Join(boot.BinDir, "cove-guest"), "docker"}, args)
	case command == "step" && len(args) == 0, command == "step" && len(args) == 1 && args[0] == "inside":
		os.Exit(step.Main(os.Stdin, os.Stderr, len(args) == 1))
	case command == "job" && len(args) > 1:
		return job(ctx, args[0], args[1:], stdout)
	}
	return errUsage
}

func job(ctx context.Context, verb string, args []string, stdout io.Writer) error {
	switch {
	case verb == "run" && len(args) == 1:
		return supervise.Run(ctx, args[0], os.Getenv(supervise.BootVar))
	case verb == "follow" && len(args) == 2:
		from, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return errUsage
		}
		return supervise.Follow(ctx, stdout, args[0], from)
	case verb == "send" && len(args) == 1:
		return supervise.Send(args[0], os.Stdin)
	case verb == "stop" && len(args) == 1:
		return supervise.Stop(args[0])
	case verb == "set-up" && len(args) == 1:
		return supervise.SetUp(ctx, args[0], stdout)
	case verb == "is-set-up" && len(args) == 1:
		return supervise.IsSetUp(args[0])
	case verb == "finalize" && len(args) == 2:
		return supervise.Finalize(ctx, args[0], args[1])
	}
	return errUsage
}

func tool(ctx context.Context, verb string, args []string, stdout io.Writer) error {
	var texts []string
	var dir string
	flags := flag.NewFlagSet("tool", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Func("role", "", func(text string) error { texts = append(texts, text); return nil })
	flags.StringVar(&dir, "dir", "", "")
	switch err := flags.Parse(args); {
	case err != nil || flags.NArg() > 0:
		return errUsage
	case verb == "keep" && len(args) == 0:
		return tools.Keep(os.Stdin, os.NewFile(3, "report"))
	case verb != "serve":
		return errUsage
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	role, err := tools.ParseRole(texts...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cove-guest:", err) // each call is told, too
	}
	server := &tools.Server{Role: role, Dir: dir, Keeper: []string{program, "tool", "keep"}}
	return server.Serve(ctx, os.Stdin, stdout)
}

// agent is the client of an agent that speaks ACP.
func agent(ctx context.Context, verb string, args []string, stdout io.Writer) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	keeper := []string{program, "tool", "keep"}
	if verb == "bridge" {
		b := &acp.Bridge{Argv: args, Dir: dir, Keeper: keeper, In: os.Stdin, Out: stdout, Err: os.Stderr}
		return b.Run(ctx)
	}
	var prompt, session, permissions string
	flags := flag.NewFlagSet("acp", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&prompt, "prompt", "", "")
	flags.StringVar(&session, "session", "", "")
	flags.StringVar(&permissions, "permissions", "", "")
	var servers []acp.Server
	flags.Func("mcp", "", func(text string) error {
		name, program, ok := strings.Cut(text, "=")
		if !ok {
			return errUsage
		}
		servers = append(servers, acp.Server{Name: name, Program: program})
		return nil
	})
	policy, parseErr := acp.Permissions(""), flags.Parse(args)
	if parseErr == nil {
		policy, parseErr = acp.ParsePermissions(permissions)
	}
	if parseErr != nil || verb != "run" || prompt == "" || flags.NArg() == 0 {
		return errUsage
	}
	return acp.Main(ctx, acp.Job{Argv: flags.Args(), Dir: dir, Session: session, Permissions: policy, Keeper: keeper, Servers: servers}, prompt)
}

func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		return 2
	}
	return supervise.ExitCode(err)
}
