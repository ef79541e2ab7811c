// Package spriteenv is the command sprite-env. With it, programs inside a sprite use its
// services and hold it awake (protocol section 7.9). It speaks HTTP over the socket that the
// guest serves to everyone inside.
package spriteenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/sprites"
)

// Main runs sprite-env against a socket, and returns the exit code: 0, 1 for a failure, 2 for
// wrong usage. args do not include the program's name.
func Main(ctx context.Context, socket string, args []string, stdout, stderr io.Writer) int {
	e := &env{out: stdout, errs: stderr, dir: filepath.Dir(socket), client: &sprites.Client{
		URL: "http://sprite",
		HTTPClient: &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		}},
	}}
	root := e.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "sprite-env:", err)
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintln(stderr, "see: sprite-env --help")
		return 2
	}
	return 1
}

type usageError struct{ error }

type env struct {
	client *sprites.Client
	dir    string    // of the guest's files
	out    io.Writer // what was asked for
	errs   io.Writer // remarks
}

func (e *env) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sprite-env",
		Short: "This sprite, from inside: its services, and what holds it awake",
		Example: `  sprite-env services create web --cmd python3 --args -m,http.server,8080 --http-port 8080
  sprite-env tasks create build --expire 30m
  sprite-env info`,
		SilenceErrors: true, SilenceUsage: true,
		RunE: subcommand,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(e.services(), e.tasks(), e.info(), e.generation(), e.version(), e.curl())
	return root
}

// subcommand is for commands that need a subcommand.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s: unknown command %q", cmd.CommandPath(), args[0])}
	}
	return cmd.Help()
}

// exact checks the number of arguments.
func exact(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%s takes %d arguments, not %d", cmd.CommandPath(), n, len(args))}
		}
		return nil
	}
}

func (e *env) print(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// event prints an event, as a line of JSON.
func (e *env) event(ev sprites.ServiceEvent) {
	enc := json.NewEncoder(e.out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(ev) // nobody reads any more
}

func (e *env) services() *cobra.Command {
	group := &cobra.Command{Use: "services", Aliases: []string{"service"}, Short: "Programs that the sprite keeps running", RunE: subcommand}
	group.AddCommand(
		&cobra.Command{Use: "list", Short: "List the services", Args: exact(0), RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := e.client.Self().Services(cmd.Context())
			if err != nil {
				return err
			}
			return e.print(list)
		}},
		&cobra.Command{Use: "get NAME", Short: "Describe a service", Args: exact(1), RunE: func(cmd *cobra.Command, args []string) error {
			d, err := e.client.Self().Service(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return e.print(d)
		}},
		e.createService(),
		e.followed("start NAME", "Start a service", (*sprites.Sprite).StartService),
		e.followed("restart NAME", "Stop a service and start it again", (*sprites.Sprite).RestartService),
		e.stopService(),
		e.logs(),
		&cobra.Command{Use: "signal NAME SIGNAL", Short: "Send a signal to a service", Args: exact(2), RunE: func(cmd *cobra.Command, args []string) error {
			return e.client.Self().SignalService(cmd.Context(), args[0], sprites.Signal(args[1]))
		}},
		&cobra.Command{Use: "delete NAME", Aliases: []string{"rm"}, Short: "Stop a service and delete it", Args: exact(1), RunE: func(cmd *cobra.Command, args []string) error {
			return e.client.Self().DeleteService(cmd.Context(), args[0])
		}},
	)
	return group
}

// following holds the flags of calls that can be followed.
type following struct {
	duration time.Duration
	noStream bool
}

func (f *following) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.duration, "duration", 5*time.Second, "show events for this long")
	cmd.Flags().BoolVar(&f.noStream, "no-stream", false, "return at once")
}

func (e *env) follow(f following) sprites.Follow {
	if f.noStream {
		return sprites.Follow{}
	}
	return sprites.Follow{Duration: f.duration, Events: e.event}
}

func (e *env) createService() *cobra.Command {
	var def sprites.Service
	var vars []string
	var f following
	var replace bool
	cmd := &cobra.Command{
		Use:     "create NAME --cmd PROGRAM",
		Short:   "Define a service and start it",
		Example: `  sprite-env services create web --cmd python3 --args -m,http.server,8080 --http-port 8080`,
		Args:    exact(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			def.Name, def.Env = args[0], map[string]string{}
			for _, pair := range vars {
				key, value, ok := strings.Cut(pair, "=")
				if !ok {
					return usageError{fmt.Errorf("--env %s: want K=V", pair)}
				}
				def.Env[key] = value
			}
			if def.Cmd == "" {
				return usageError{errors.New("--cmd is missing: the program")}
			}
			if !replace {
				_, err := e.client.Self().Service(cmd.Context(), def.Name)
				if err == nil {
					return fmt.Errorf("service %s exists; to replace its definition, add --replace", def.Name)
				} else if !errors.Is(err, sprites.ErrNotFound) {
					return err
				}
			}
			if err := e.client.Self().PutService(cmd.Context(), def, e.follow(f)); err != nil {
				return err
			}
			return e.runs(cmd.Context(), def.Name)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&def.Cmd, "cmd", "", "the program")
	flags.StringSliceVar(&def.Args, "args", nil, "its arguments, `A,B,…`")
	flags.StringSliceVar(&vars, "env", nil, "environment, `K=V,…`")
	flags.StringVar(&def.Dir, "dir", "", "folder to run it in")
	flags.StringSliceVar(&def.Needs, "needs", nil, "services that must run before it")
	flags.IntVar(&def.HTTPPort, "http-port", 0, "the port at which it speaks HTTP")
	flags.StringVar(&def.AfterRestore, "after-restore", "", "in a fork, or a restore, with memory: restart (default), none, or a `SIGNAL` for it")
	flags.BoolVar(&replace, "replace", false, "replace its definition if it exists")
	f.add(cmd)
	return cmd
}

// runs returns an error if a service fails after a change.
func (e *env) runs(ctx context.Context, name string) error {
	d, err := e.client.Self().Service(ctx, name)
	if err == nil && d.State.Status == sprites.ServiceFailed {
		err = fmt.Errorf("service %s does not run: %s; it is tried again; see: sprite-env services logs %s", name, d.State.Error, name)
	}
	return err
}

func (e *env) followed(use, short string, call func(*sprites.Sprite, context.Context, string, sprites.Follow) error) *cobra.Command {
	var f following
	cmd := &cobra.Command{Use: use, Short: short, Args: exact(1), RunE: func(cmd *cobra.Command, args []string) error {
		if err := call(e.client.Self(), cmd.Context(), args[0], e.follow(f)); err != nil {
			return err
		}
		return e.runs(cmd.Context(), args[0])
	}}
	f.add(cmd)
	return cmd
}

func (e *env) stopService() *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{Use: "stop NAME", Short: "Stop a service until it is started again", Args: exact(1), RunE: func(cmd *cobra.Command, args []string) error {
		return e.client.Self().StopService(cmd.Context(), args[0], grace, e.event)
	}}
	cmd.Flags().DurationVar(&grace, "timeout", 10*time.Second, "wait this long before it is killed")
	return cmd
}

func (e *env) logs() *cobra.Command {
	var lines int
	var d time.Duration
	cmd := &cobra.Command{Use: "logs NAME", Short: "Show a service's log", Args: exact(1), RunE: func(cmd *cobra.Command, args []string) error {
		return e.client.Self().ServiceLogs(cmd.Context(), args[0], lines, d, func(ev sprites.ServiceEvent) error {
			_, err := io.WriteString(e.out, ev.Data)
			return err
		})
	}}
	cmd.Flags().IntVar(&lines, "lines", 100, "show this many earlier lines")
	cmd.Flags().DurationVar(&d, "duration", 0, "show new lines for this long")
	return cmd
}

func (e *env) tasks() *cobra.Command {
	group := &cobra.Command{Use: "tasks", Aliases: []string{"task"}, Short: "What holds the sprite awake, for an hour at most each", RunE: subcommand}
	write := func(use, short, method string) *cobra.Command {
		var expire string
		cmd := &cobra.Command{Use: use, Short: short, Args: exact(1), RunE: func(cmd *cobra.Command, args []string) error {
			d, err := sprites.TaskExpiry(expire)
			if err != nil {
				return usageError{fmt.Errorf("--%w", err)}
			}
			body, err := json.Marshal(map[string]string{"name": args[0], "expire": expire})
			if err != nil {
				return err
			}
			if err := e.call(cmd.Context(), method, "/v1/tasks", bytes.NewReader(body)); err != nil {
				return err
			}
			if d > sprites.LongestTask {
				fmt.Fprintf(e.errs, "sprite-env: task %s ends after %v, the longest allowed time; to extend it: sprite-env tasks update %s\n", args[0], sprites.LongestTask, args[0])
			}
			return nil
		}}
		cmd.Flags().StringVar(&expire, "expire", "1h", "when it ends by itself: seconds, or a duration as `30m`; 1h at most")
		return cmd
	}
	group.AddCommand(
		&cobra.Command{Use: "list", Short: "List the tasks", Args: exact(0), RunE: func(cmd *cobra.Command, _ []string) error {
			return e.call(cmd.Context(), http.MethodGet, "/v1/tasks", nil)
		}},
		&cobra.Command{Use: "get NAME", Short: "Describe a task", Args: exact(1), RunE: func(cmd *cobra.Command, args []string) error {
			return e.call(cmd.Context(), http.MethodGet, "/v1/tasks/"+url.PathEscape(args[0]), nil)
		}},
		write("create NAME", "Hold the sprite awake", http.MethodPost),
		write("update NAME", "Make a task, or extend it", http.MethodPut),
		&cobra.Command{Use: "delete NAME", Aliases: []string{"rm"}, Short: "End a task", Args: exact(1), RunE: func(cmd *cobra.Command, args []string) error {
			return e.call(cmd.Context(), http.MethodDelete, "/v1/tasks/"+url.PathEscape(args[0]), nil)
		}},
	)
	return group
}

func (e *env) info() *cobra.Command {
	return &cobra.Command{Use: "info", Short: "Describe this sprite, as JSON", Args: exact(0), RunE: func(cmd *cobra.Command, _ []string) error {
		return e.call(cmd.Context(), http.MethodGet, "/v1/info", nil)
	}}
}

func (e *env) generation() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "generation",
		Short: "Say which run of the sprite this is",
		Long: `Prints a UUID that is new at each boot, and in each fork or restore that goes on from
memory. A program that runs on in such a copy has the random state of the others: it
reseeds when the UUID is another one. The same is in /.sprite/generation, which is
replaced by a rename, and in /proc/sys/kernel/random/boot_id.`,
		Example: "  sprite-env generation --wait && kill -HUP $PID    in the background",
		Args:    exact(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			before := ""
			if wait {
				var err error
				if before, err = e.lastGeneration(cmd.Context()); err != nil {
					return err
				}
			}
			now, err := e.askGeneration(cmd.Context(), before)
			if err == nil {
				_, err = fmt.Fprintln(e.out, now)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for another generation, and print it")
	return cmd
}

// lastGeneration returns the generation to wait for the end of. It is read from the guest's file
// before anything is asked. So a copy that is made while the question is on its way ends the wait.
func (e *env) lastGeneration(ctx context.Context) (string, error) {
	text, err := os.ReadFile(filepath.Join(e.dir, "generation"))
	if errors.Is(err, fs.ErrNotExist) { // this guest writes none
		return e.askGeneration(ctx, "")
	}
	return strings.TrimSpace(string(text)), err
}

// askGeneration asks for the generation, and waits until it is another one than after.
func (e *env) askGeneration(ctx context.Context, after string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sprite/v1/generation?after="+url.QueryEscape(after), nil)
	if err != nil {
		return "", err
	}
	resp, err := e.client.HTTPClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var g sprites.Generation
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&g); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK || g.Generation == "" {
		return "", fmt.Errorf("the sprite answered %s", resp.Status)
	}
	return g.Generation, nil
}

func (e *env) version() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the protocol's version", Args: exact(0), RunE: func(*cobra.Command, []string) error {
		_, err := fmt.Fprintln(e.out, sprites.Version)
		return err
	}}
}

func (e *env) curl() *cobra.Command {
	var method, data string
	cmd := &cobra.Command{
		Use:     "curl PATH",
		Short:   "Call the socket's API",
		Example: `  sprite-env curl /v1/services` + "\n" + `  sprite-env curl -X POST -d '{"name":"build"}' /v1/tasks`,
		Args:    exact(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var body io.Reader
			if data != "" {
				body = strings.NewReader(data)
			}
			return e.call(cmd.Context(), method, args[0], body)
		},
	}
	cmd.Flags().StringVarP(&method, "request", "X", http.MethodGet, "the method")
	cmd.Flags().StringVarP(&data, "data", "d", "", "the body")
	return cmd
}

// call makes a call and prints its answer.
func (e *env) call(ctx context.Context, method, path string, body io.Reader) error {
	if !strings.HasPrefix(path, "/") {
		return usageError{fmt.Errorf("the path must begin with a slash: %s", path)}
	}
	req, err := http.NewRequestWithContext(ctx, method, e.client.URL+path, body)
	if err != nil {
		return err
	}
	resp, err := e.client.HTTPClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 400 {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if err != nil {
			return err
		}
		var said sprites.ErrorBody
		if json.Unmarshal(text, &said) == nil && said.Message != "" {
			return errors.New(said.Message)
		}
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	_, err = io.Copy(e.out, resp.Body)
	return err
}
