package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// servicePattern is what may be a service's name.
var servicePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })

func newServiceCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Programs that a sprite keeps running",
		Long: `A service is a program that is started whenever its sprite boots, and again when it has crashed,
until it is stopped. Its definition and its log are in the sprite.

A service does not keep its sprite awake. Only a connection, a running command or a task (see
sprite-env inside) does. A request to the sprite's URL wakes it. It also starts the service that
has an HTTP port, even if that was stopped.`,
		Example: `  cove service put -s paint --http-port 8080 web python3 -m http.server 8080
  cove service list -s paint
  cove service logs -f web -s paint`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newServicePutCommand(inv), newServiceListCommand(inv), newServiceShowCommand(inv), newServiceStartCommand(inv), newServiceStopCommand(inv),
		newServiceRestartCommand(inv), newServiceLogsCommand(inv), newServiceSignalCommand(inv), asksFirst(inv, newServiceRmCommand(inv), eachOfSprite(inv, "the definition of service %s, and its processes, in sprite %s")))
	return cmd
}

// serviceVerb is a verb that has a service's name as its first argument.
func serviceVerb(inv *invocation, run func(ctx context.Context, sprite *sprites.Sprite, name string, rest []string) error) func(*cobra.Command, []string) error {
	return verb(func(ctx context.Context, args []string) error {
		if err := checkService(args[0]); err != nil {
			return err
		}
		sprite, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		return serviceError(run(ctx, sprite, args[0], args[1:]), sprite)
	})
}

// checkService says what is wrong with a service's name.
func checkService(name string) error {
	if servicePattern().MatchString(name) {
		return nil
	}
	return fail.Newf("bad_name", "letters, digits, dots, dashes and underscores, at most 63", "%q can't be a service's name", name)
}

// serviceError adds a hint to the error of a call for a service.
func serviceError(err error, sprite *sprites.Sprite) error {
	e, ok := errors.AsType[*sprites.Error](err)
	if ok && e.Code == "service_not_found" {
		return hinted(err, "see which there are: cove service list -s "+sprite.Name())
	}
	return spriteError(err)
}

func newServicePutCommand(inv *invocation) *cobra.Command {
	var def sprites.Service
	var env []string
	var follow time.Duration
	cmd := &cobra.Command{
		Use:   "put [flags] NAME CMD…",
		Short: "Define a service and start it",
		Long: `Defines a service, or defines it anew, and starts it. If it already runs with exactly this
definition, it is left alone. If it runs with another one, the old program is ended first.

Flags may be before and after the name. The command begins at the first argument that is not a
flag, or after --. From there on, flags belong to the command.`,
		Example: `  cove service put --http-port 8080 web python3 -m http.server 8080
  cove service put --needs db --env QUEUE=mail --dir /home/sprite/app worker ./worker -v`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the service's name is missing")
			}
			if err := cmd.Flags().Parse(args[1:]); err != nil { // a command's name never begins with a dash
				return usagef(cmd, "%w", err)
			}
			if help, _ := cmd.Flags().GetBool("help"); help {
				return pflag.ErrHelp
			}
			if cmd.Flags().NArg() == 0 {
				return usagef(cmd, "the command is missing")
			}
			return nil
		},
	}
	cmd.RunE = serviceVerb(inv, func(ctx context.Context, sprite *sprites.Sprite, name string, _ []string) error {
		if def.HTTPPort < 0 || def.HTTPPort > 65535 || def.HTTPPort == 0 && cmd.Flags().Changed("http-port") {
			return usagef(cmd, "--http-port %d is not a port", def.HTTPPort)
		}
		command := cmd.Flags().Args()
		def.Name, def.Cmd, def.Args = name, command[0], command[1:]
		if err := checkPlainEnv(cmd, env); err != nil {
			return err
		}
		def.Env = map[string]string{}
		for _, pair := range env {
			key, value, ok := strings.Cut(pair, "=")
			if !ok || key == "" {
				return usagef(cmd, "--env %s: want K=V", pair)
			}
			def.Env[key] = value
		}
		if err := sprite.PutService(ctx, def, followService(inv, follow)); err != nil {
			return err
		}
		return showService(ctx, inv, sprite, name)
	})
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.IntVar(&def.HTTPPort, "http-port", 0, "the port at which it speaks HTTP: the sprite's URL leads there")
	f.StringSliceVar(&def.Needs, "needs", nil, "services that must run before it")
	f.StringArrayVar(&env, "env", nil, "set an environment variable, `K=V` (repeatable)")
	f.StringVar(&def.Dir, "dir", "", "folder to run it in (default: the sprite's home)")
	f.StringVar(&def.AfterRestore, "after-restore", "", "in a fork, or a restore, with memory: restart (default), none, or a `SIGNAL` for it")
	f.StringVar(&def.StopSignal, "stop-signal", "", "the `SIGNAL` that asks it to end (default: TERM, also for what it has started)")
	f.StringVar(&def.User, "user", "", "run it as this user (default: the one that commands run as)")
	addFollow(cmd, &follow)
	must(cmd.RegisterFlagCompletionFunc("needs", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeService(inv)(cmd, nil, prefix)
	}))
	return cmd
}

func addFollow(cmd *cobra.Command, follow *time.Duration) {
	cmd.Flags().DurationVar(follow, "follow", time.Second, "show its output for so long")
}

// followService prints a service's output as it comes.
func followService(inv *invocation, d time.Duration) sprites.Follow {
	return sprites.Follow{Duration: d, Events: func(e sprites.ServiceEvent) {
		if !inv.global.json && !inv.global.quiet {
			printServiceEvent(inv.text(), e)
		}
	}}
}

// printServiceEvent prints an event for people. It makes a service's output harmless
// for a terminal.
func printServiceEvent(w io.Writer, e sprites.ServiceEvent) {
	switch e.Type {
	case sprites.ServiceEventStdout, sprites.ServiceEventStderr:
		fmt.Fprintln(w, "| "+printable.Line(strings.TrimRight(e.Data, "\r\n")))
	case sprites.ServiceEventError, sprites.ServiceEventStopping:
		if e.Data != "" {
			fmt.Fprintln(w, "-- "+printable.Line(strings.TrimRight(e.Data, "\r\n")))
		}
	case sprites.ServiceEventExit:
		if e.ExitCode != nil {
			fmt.Fprintf(w, "-- it ended with code %d\n", *e.ExitCode)
		}
	}
}

// showService tells what a service does after a change. One that fails is this
// command's failure.
func showService(ctx context.Context, inv *invocation, sprite *sprites.Sprite, name string) error {
	d, err := sprite.Service(ctx, name)
	if err != nil {
		return err
	}
	if d.State.Status == sprites.ServiceFailed {
		if inv.global.json {
			inv.printJSON(d)
		}
		return fail.Newf("service_failed", "it is tried again; see: cove service logs "+name+" -s "+sprite.Name(), "service %s does not run: %s", name, printable.Line(d.State.Error))
	}
	return inv.show(d, func(w io.Writer) {
		switch {
		case inv.global.quiet:
		case endedByItself(d):
			fmt.Fprintf(w, "Service %s has ended with code %d.\n", name, *d.State.ExitCode)
		default:
			fmt.Fprintf(w, "Service %s is %s.\n", name, printable.Line(d.State.Status))
		}
	})
}

func newServiceListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the services of a sprite",
		Long:    `Lists the services of a sprite. If the sprite sleeps, it is woken, because they are in it.`,
		Example: `  cove service list -s paint`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			sprite, err := inv.spriteHandle(ctx)
			if err != nil {
				return err
			}
			list, err := sprite.Services(ctx)
			if err != nil {
				return spriteError(err)
			}
			doc := struct {
				Services []sprites.Service `json:"services"`
			}{append([]sprites.Service{}, list...)}
			return inv.show(doc, func(w io.Writer) {
				if len(list) == 0 {
					inv.tell(w, "No services. Define one: cove service put NAME CMD")
					return
				}
				printServices(w, list, time.Now())
			})
		}),
	}
}

// endedByItself tells a service that has nothing more to do from one that
// somebody has stopped.
func endedByItself(d sprites.Service) bool {
	return d.State.Status == sprites.ServiceStopped && d.State.ExitCode != nil
}

func printServices(w io.Writer, list []sprites.Service, now time.Time) {
	rows := [][]string{{"NAME", "STATUS", "STARTED", "RESTARTS", "PORT", "COMMAND"}}
	for _, d := range list {
		started, port := "-", "-"
		if d.State.StartedAt != nil && d.State.PID != 0 {
			started = ago(*d.State.StartedAt, now)
		}
		if d.HTTPPort != 0 {
			port = strconv.Itoa(d.HTTPPort)
		}
		status := d.State.Status
		if endedByItself(d) {
			status = fmt.Sprintf("ended (%d)", *d.State.ExitCode)
		}
		rows = append(rows, []string{
			d.Name, status, started, strconv.Itoa(d.State.RestartCount), port,
			strings.Join(append([]string{d.Cmd}, d.Args...), " "),
		})
	}
	table(w, rows)
}

func newServiceShowCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Describe a service",
		Long:              `Describes a service: its definition and its state.`,
		Example:           `  cove service show web -s paint`,
		Args:              exactArgs("the service's name"),
		ValidArgsFunction: completeService(inv),
		RunE: serviceVerb(inv, func(ctx context.Context, sprite *sprites.Sprite, name string, _ []string) error {
			d, err := sprite.Service(ctx, name)
			if err != nil {
				return err
			}
			return inv.show(d, func(w io.Writer) { printService(w, d, time.Now()) })
		}),
	}
}

func printService(w io.Writer, d sprites.Service, now time.Time) {
	status := d.State.Status
	switch {
	case endedByItself(d):
		status = fmt.Sprintf("ended with code %d; started again at the next boot", *d.State.ExitCode)
	case status == sprites.ServiceStopped:
		status = "stopped, until somebody starts it"
	}
	rows := [][]string{
		{"Service:", d.Name},
		{"Command:", strings.Join(append([]string{d.Cmd}, d.Args...), " ")},
		{"Status:", status},
	}
	add := func(name, value string) {
		if value != "" && value != "0" {
			rows = append(rows, []string{name, value})
		}
	}
	add("Folder:", d.Dir)
	add("User:", d.User)
	add("Stop signal:", d.StopSignal)
	for key, value := range d.Env {
		add("Environment:", key+"="+value)
	}
	add("Needs:", strings.Join(d.Needs, ", "))
	add("HTTP port:", strconv.Itoa(d.HTTPPort))
	add("Process:", strconv.Itoa(d.State.PID))
	if d.State.StartedAt != nil {
		add("Started:", ago(*d.State.StartedAt, now))
	}
	add("Restarts:", strconv.Itoa(d.State.RestartCount))
	add("Last end:", d.State.Error)
	if d.State.NextRestartAt != nil {
		add("Tried again in:", time.Until(*d.State.NextRestartAt).Round(time.Second/10).String())
	}
	table(w, rows)
}

func newServiceStartCommand(inv *invocation) *cobra.Command {
	var follow time.Duration
	cmd := &cobra.Command{
		Use:   "start NAME",
		Short: "Start a service, and first what it needs",
		Long: `Starts a service, and first those that it needs. From then on it is kept running, also after
boots.`,
		Example:           `  cove service start web -s paint`,
		Args:              exactArgs("the service's name"),
		ValidArgsFunction: completeService(inv),
		RunE: serviceVerb(inv, func(ctx context.Context, sprite *sprites.Sprite, name string, _ []string) error {
			if err := sprite.StartService(ctx, name, followService(inv, follow)); err != nil {
				return err
			}
			return showService(ctx, inv, sprite, name)
		}),
	}
	addFollow(cmd, &follow)
	return cmd
}

func newServiceRestartCommand(inv *invocation) *cobra.Command {
	var follow time.Duration
	cmd := &cobra.Command{
		Use:               "restart NAME",
		Short:             "Stop a service and start it again",
		Long:              `Stops a service, if it runs, and starts it.`,
		Example:           `  cove service restart web -s paint`,
		Args:              exactArgs("the service's name"),
		ValidArgsFunction: completeService(inv),
		RunE: serviceVerb(inv, func(ctx context.Context, sprite *sprites.Sprite, name string, _ []string) error {
			if err := sprite.RestartService(ctx, name, followService(inv, follow)); err != nil {
				return err
			}
			return showService(ctx, inv, sprite, name)
		}),
	}
	addFollow(cmd, &follow)
	return cmd
}

func newServiceStopCommand(inv *invocation) *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "stop NAME",
		Short: "Stop a service, until somebody starts it",
		Long: `Stops a service: all that it started gets TERM, and after the grace period KILL. It stays
stopped, also after a boot, until somebody starts it. If it is the service with the HTTP port, a
request to the sprite's URL starts it, too.`,
		Example:           `  cove service stop web --grace 30s -s paint`,
		Args:              exactArgs("the service's name"),
		ValidArgsFunction: completeService(inv),
		RunE: serviceVerb(inv, func(ctx context.Context, sprite *sprites.Sprite, name string, _ []string) error {
			err := sprite.StopService(ctx, name, grace, followService(inv, 0).Events)
			if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode == http.StatusConflict {
				err = nil // it is as it should be
			}
			if err != nil {
				return err
			}
			return showService(ctx, inv, sprite, name)
		}),
	}
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Second, "how long to wait before killing it")
	return cmd
}

// heldOf is why a sprite is held; nil: it is not.
func heldOf(ctx context.Context, sprite *sprites.Sprite) (*sprites.Held, error) {
	info, err := sprite.Client().Get(ctx, sprite.Name())
	return heldBy(info), err
}

// forever is longer than anybody follows a log.
const forever = 1000 * time.Hour

func newServiceLogsCommand(inv *invocation) *cobra.Command {
	var follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show the log of a service",
		Long: `Shows the end of a service's log, which has standard output and standard error. The sprite keeps
more of it: the last 16 to 32 MiB, in /.sprite/logs/services/NAME.log and NAME.log.1.`,
		Example: `  cove service logs web -s paint
  cove service logs -n 1000 web -s paint
  cove service logs -f web -s paint`,
		Args:              exactArgs("the service's name"),
		ValidArgsFunction: completeService(inv),
	}
	cmd.RunE = serviceVerb(inv, func(ctx context.Context, sprite *sprites.Sprite, name string, _ []string) error {
		if lines < 0 {
			return usagef(cmd, "-n %d is not a number of lines", lines)
		}
		if follow && inv.global.json {
			return usagef(cmd, "--follow has no end, so it can't be one JSON document")
		}
		var d time.Duration
		if follow {
			d = forever
		}
		all := struct {
			Events []sprites.ServiceEvent `json:"events"`
		}{Events: []sprites.ServiceEvent{}}
		heard := func() {}
		if follow {
			watch := watchHeld(ctx, inv, func(ctx context.Context) (*sprites.Held, error) { return heldOf(ctx, sprite) })
			defer watch.stop()
			heard = watch.heard
		}
		err := sprite.ServiceLogs(ctx, name, lines, d, func(e sprites.ServiceEvent) error {
			heard()
			switch {
			case e.Type == sprites.ServiceEventComplete:
			case inv.global.json:
				all.Events = append(all.Events, e)
			default:
				printLogged(inv.text(), e)
			}
			return nil
		})
		if _, refused := errors.AsType[*sprites.Error](err); err != nil && follow && !refused && ctx.Err() == nil {
			return hinted(err, "it goes on; follow it again: cove service logs -f "+name+" -s "+sprite.Name())
		}
		if err != nil {
			return err
		}
		if inv.global.json {
			inv.printJSON(all)
		}
		return nil
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with its new output")
	cmd.Flags().IntVarP(&lines, "lines", "n", 100, "how many lines of earlier output")
	cmd.Flags().SetNormalizeFunc(tailIsLines)
	return cmd
}

// printLogged prints a line of a log as it was said, but harmless for a terminal.
func printLogged(w io.Writer, e sprites.ServiceEvent) {
	switch e.Type {
	case sprites.ServiceEventStdout, sprites.ServiceEventStderr:
		fmt.Fprintln(w, printable.Line(strings.TrimRight(e.Data, "\r\n")))
	default:
		printServiceEvent(w, e)
	}
}

func newServiceSignalCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "signal NAME SIGNAL",
		Short: "Send a signal to a service",
		Long:  `Sends a signal to a service's main process. If that ends the service, it is started again.`,
		Example: `  cove service signal web HUP -s paint
  cove service signal web 9 -s paint`,
		Args: exactArgs("the service's name", "the signal"),
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return completeSignal(cmd, args, prefix)
		}
		return completeService(inv)(cmd, args, prefix)
	}
	cmd.RunE = serviceVerb(inv, func(ctx context.Context, sprite *sprites.Sprite, name string, rest []string) error {
		sig, err := parseSignal(cmd, rest[0])
		if err != nil {
			return err
		}
		if err := sprite.SignalService(ctx, name, sig); err != nil {
			return err
		}
		doc := struct {
			Service string `json:"service"`
			Signal  string `json:"signal"`
		}{name, string(sig)}
		return inv.show(doc, func(w io.Writer) {
			if !inv.global.quiet {
				fmt.Fprintf(w, "Sent %s to service %s.\n", sig, name)
			}
		})
	})
	return cmd
}

// parseSignal reads a signal's name, with or without SIG, or its number.
func parseSignal(cmd *cobra.Command, text string) (sprites.Signal, error) {
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if n, err := strconv.Atoi(text); err == nil {
		name = unix.SignalName(syscall.Signal(n))
	}
	if unix.SignalNum(name) == 0 {
		return "", usagef(cmd, "there is no signal %q; there are %s and others", text, strings.Join(usualSignals, ", "))
	}
	return sprites.Signal(strings.TrimPrefix(name, "SIG")), nil
}

// usualSignals are those that are proposed.
var usualSignals = []string{"TERM", "HUP", "INT", "KILL", "QUIT", "USR1", "USR2", "STOP", "CONT"}

func newServiceRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:               "rm NAME...",
		Short:             "Stop services and delete their definitions",
		Long:              `Stops services and deletes their definitions. Their logs stay in the sprite.`,
		Example:           `  cove service rm web worker -s paint`,
		Annotations:       map[string]string{"several": "yes"},
		Args:              someArgs("the service's name"),
		ValidArgsFunction: completeService(inv),
		RunE: serviceVerb(inv, func(ctx context.Context, sprite *sprites.Sprite, name string, rest []string) error {
			return removeEach(ctx, inv, append([]string{name}, rest...), func(name string) error {
				if err := checkService(name); err != nil {
					return err
				}
				return serviceError(sprite.DeleteService(ctx, name), sprite)
			})
		}),
	}
}
