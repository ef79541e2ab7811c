// Cove-loop is cove's own agent (package loop), where its tools act: in a sprite.
//
//	cove-loop run --model PROVIDER/MODEL [--prompt FILE] [flags]
//	cove-loop version
//
// The prompt is read from a file, or from standard input. Events go to standard
// output, one JSON object a line; the last one is the result.
//
//	--role ROLE         what its tools may do; more of them only narrow (default full)
//	--mcp host:NAME=TOOL,TOOL
//	                    the MCP server behind the connector NAME, and its tools that may
//	                    be called (*: all of them); may be given again
//	--mcp sprite:NAME=PROGRAM
//	                    the MCP server that a program is, by its standard streams, with all
//	                    its tools; likewise
//	--base-url URL      of the model's API (else ANTHROPIC_BASE_URL, OPENAI_BASE_URL,
//	                    GOOGLE_GEMINI_BASE_URL, or the vendor's)
//	--sessions DIR      keep the conversation there, in a file that has its session's id
//	--resume ID         go on with one of those
//	--max-turns N       answers of the model
//	--max-time 30m      of all
//	--max-cost USD      with --price
//	--price IN/OUT      dollars for a million tokens
//	--context TOKENS    that a request may have, about
//	--stall 5m          of silence in an answer
//
// The key is ANTHROPIC_API_KEY (or else the token ANTHROPIC_AUTH_TOKEN),
// OPENAI_API_KEY, or GEMINI_API_KEY (or else GOOGLE_API_KEY).
//
// It exits with 0 if the work is done, and with 1 if it is not. Other exit codes are
// 2 (wrong usage), 124 (the time was up) and 130 (the loop was stopped).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest/loop"
	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/sprites"
)

var errUsage = errors.New("usage: cove-loop run --model PROVIDER/MODEL [--prompt FILE] [--role ROLE]... [--mcp host:NAME=TOOL,... | --mcp sprite:NAME=PROGRAM]... [--base-url URL] [--sessions DIR [--resume ID]] " +
	"[--max-turns N] [--max-time DURATION] [--max-cost USD --price IN/OUT] [--context TOKENS] [--stall DURATION] | tool keep | version")

func main() {
	log.SetOutput(io.Discard) // an SDK's; errors are in the events
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cove-loop:", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	switch {
	case len(args) > 0 && args[0] == "run":
		return start(ctx, args[1:])
	case len(args) == 2 && args[0] == "tool" && args[1] == "keep":
		if err := tools.Keep(os.Stdin, os.NewFile(3, "report")); err != nil {
			return 1, err
		}
		return 0, nil
	case len(args) == 1 && args[0] == "version":
		_, err := fmt.Println("cove-loop", sprites.Version)
		return 0, err
	}
	return 2, errUsage
}

type options struct {
	model, prompt, baseURL, sessions, resume string
	roles                                    []string
	mcp                                      []loop.MCPServer
	limits                                   loop.Limits
	price                                    *loop.Price
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.model, "model", "", "")
	f.StringVar(&o.prompt, "prompt", "", "")
	f.StringVar(&o.baseURL, "base-url", "", "")
	f.StringVar(&o.sessions, "sessions", "", "")
	f.StringVar(&o.resume, "resume", "", "")
	f.Func("role", "", func(text string) error { o.roles = append(o.roles, text); return nil })
	f.Func("mcp", "", func(text string) error {
		if name, program, ok := strings.Cut(strings.TrimPrefix(text, "sprite:"), "="); ok && strings.HasPrefix(text, "sprite:") && program != "" {
			o.mcp = append(o.mcp, loop.MCPServer{Name: name, Program: program, Tools: []string{loop.AllTools}})
			return nil
		}
		name, list, ok := strings.Cut(strings.TrimPrefix(text, "host:"), "=")
		if !ok || list == "" || !strings.HasPrefix(text, "host:") {
			return errors.New("want host:NAME=TOOL,TOOL or sprite:NAME=PROGRAM")
		}
		o.mcp = append(o.mcp, loop.MCPServer{Name: name, URL: "http://" + name + ".connect.internal/", Tools: strings.Split(list, ",")})
		return nil
	})
	f.IntVar(&o.limits.Turns, "max-turns", 0, "")
	f.DurationVar(&o.limits.Time, "max-time", 0, "")
	f.Float64Var(&o.limits.USD, "max-cost", 0, "")
	f.Int64Var(&o.limits.Context, "context", 0, "")
	f.DurationVar(&o.limits.Stall, "stall", 5*time.Minute, "")
	f.Func("price", "", func(text string) error {
		o.price = &loop.Price{}
		if n, err := fmt.Sscanf(text, "%g/%g", &o.price.Input, &o.price.Output); n != 2 || err != nil {
			return errors.New("want IN/OUT, such as 3/15")
		}
		return nil
	})
	if err := f.Parse(args); err != nil {
		return o, fmt.Errorf("%w\n%w", err, errUsage)
	}
	switch {
	case f.NArg() > 0 || o.model == "":
		return o, errUsage
	case o.limits.USD > 0 && o.price == nil:
		return o, errors.New("--max-cost needs --price")
	case o.resume != "" && o.sessions == "":
		return o, errors.New("--resume needs --sessions")
	case o.roles == nil:
		o.roles = []string{tools.Full}
	}
	return o, nil
}

// start runs a loop, and says how it ended.
func start(ctx context.Context, args []string) (int, error) {
	o, err := parse(args)
	if err != nil {
		return 2, err
	}
	provider, model, err := loop.ParseModel(o.model)
	if err != nil {
		return 2, err
	}
	p, err := loop.Open(provider, loop.Access{BaseURL: o.baseURL}, os.Getenv)
	if err != nil {
		return 2, err
	}
	prompt, err := read(o.prompt)
	if err != nil {
		return 2, err
	}
	l := &loop.Loop{Provider: p, Model: model, MCP: o.mcp, Events: os.Stdout, Limits: o.limits, Price: o.price}
	switch {
	case o.resume != "":
		l.Session, err = loop.ResumeSession(o.sessions, o.resume, provider)
	case o.sessions != "":
		l.Session, err = loop.NewSession(o.sessions, provider)
	}
	if err != nil {
		return 1, err
	}
	defer l.Session.Close()
	server, err := openTools(o.roles)
	if err != nil {
		return 1, err
	}
	defer server.Close()
	l.Tools, l.Dir = server, server.Dir
	r, err := l.Run(ctx, prompt)
	switch {
	case err != nil:
		return 1, err
	case r.Outcome == loop.Done:
		return 0, nil
	case r.Outcome == loop.TimedOut:
		return 124, nil
	case r.Outcome == loop.Cancelled:
		return 130, nil
	}
	return 1, nil
}

// openTools makes the tools ready, in the current folder. An unknown role denies all.
func openTools(roles []string) (*tools.Server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	role, err := tools.ParseRole(roles...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cove-loop:", err) // each call is told, too
	}
	s := &tools.Server{Role: role, Dir: dir, Keeper: []string{program, "tool", "keep"}}
	return s, s.Begin()
}

// read reads the prompt.
func read(name string) (string, error) {
	var text []byte
	var err error
	if name == "" || name == "-" {
		text, err = io.ReadAll(os.Stdin)
	} else {
		text, err = os.ReadFile(name)
	}
	if err == nil && strings.TrimSpace(string(text)) == "" {
		err = errors.New("the prompt is empty")
	}
	return string(text), err
}
