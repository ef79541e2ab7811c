package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// testOptions are the flags of cove test.
type testOptions struct {
	profile    string
	agent      string
	tokenStdin bool
	quick      bool
	full       bool
}

func newTestCommand(inv *invocation) *cobra.Command {
	var o testOptions
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Test a place for jobs, step by step",
		Long: `Makes the server test itself, a backend, the backend of a profile, or any server of the protocol.
For the last, use --url with --token-stdin: the token is read from standard input, and not kept.
The steps are connection, auth, list (with --quick only these), create, policy, upload, install,
service, tunnel, health, clone, setup_script, prompt, cleanup_script and destroy.

With --profile, clone, setup_script and cleanup_script do what the url and the scripts of the
profile say, under its limits. Without a url, the scripts run in a folder of the test's. In
prompt, the agent shell, or that of --agent or the profile, carries out a plan. If that agent has
no key, this step is skipped.

All that is made is removed, also after Ctrl-C: the server does that by itself, or its next start
does. The token of this server needs the verb admin. The exit code is 1 if a step fails.`,
		Example: `  cove test
  cove test --profile nightly
  cove test --backend far --quick
  pass show sprites | cove test --token-stdin --url https://sprites.example.org --json`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		c, test, err := inv.wantedTest(ctx, cmd, o)
		if err != nil {
			return err
		}
		return runTest(ctx, inv, c, test)
	})
	f := cmd.Flags()
	f.StringVar(&o.profile, "profile", "", "test the backend of this profile, with its settings")
	f.StringVar(&o.agent, "agent", "", "the agent that carries out the prompt (if not given: the profile's, or shell)")
	f.BoolVar(&o.tokenStdin, "token-stdin", false, "read the token of the server at --url from standard input")
	f.BoolVar(&o.quick, "quick", false, "only the connection, the token and the list")
	f.BoolVar(&o.full, "full", false, "all steps (the default)")
	cmd.MarkFlagsMutuallyExclusive("quick", "full")
	return cmd
}

// maxStdinToken is the most bytes of a token on standard input.
const maxStdinToken = 64 << 10

// wantedTest returns the test that the flags ask for, and a client of the server that does it.
func (inv *invocation) wantedTest(ctx context.Context, cmd *cobra.Command, o testOptions) (*cove.Client, cove.ExecutorTest, error) {
	test := cove.ExecutorTest{Profile: o.profile, Agent: o.agent, Quick: o.quick}
	switch {
	case o.tokenStdin && inv.global.url == "":
		return nil, test, usagef(cmd, "--token-stdin goes with --url")
	case o.tokenStdin && (o.profile != "" || inv.global.backend != ""):
		return nil, test, usagef(cmd, "--token-stdin goes with --url alone, not with --profile or --backend")
	case o.profile != "" && inv.global.backend != "":
		return nil, test, usagef(cmd, "--profile or --backend, not both")
	case o.tokenStdin:
		text, err := io.ReadAll(io.LimitReader(inv.In, maxStdinToken+1))
		if err != nil {
			return nil, test, fmt.Errorf("read the token: %w", err)
		}
		if test.Token = strings.TrimSpace(string(text)); test.Token == "" || len(text) > maxStdinToken {
			return nil, test, fail.Newf("no_token", "pass show sprites | cove test --token-stdin --url "+printable.Word(inv.global.url), "there is no token on standard input")
		}
		test.URL = inv.global.url
		c, err := inv.server.ownClient(ctx, inv.server.token())
		return c, test, err
	case o.profile != "":
		c, _, err := inv.server.jobs(ctx)
		return c, test, err
	}
	return inv.server.backendTest(ctx, test)
}

// backendTest chooses the server that tests, and completes test. If a backend is in use, this
// machine's server tests it. The backend is one of the person's settings, with the token that
// they name, or else one that the server knows. Without a backend, the server in use tests itself.
func (s *chosenServer) backendTest(ctx context.Context, test cove.ExecutorTest) (*cove.Client, cove.ExecutorTest, error) {
	set, err := backends()
	if err != nil {
		return nil, test, err
	}
	if name := s.global.backend; name != "" && name != localBackend && set.Backends[name].URL == "" {
		test.Backend = name
		c, err := s.ownClient(ctx, "")
		return c, test, err
	}
	r, err := s.remote()
	if err != nil {
		return nil, test, err
	}
	if r.backend == nil {
		c, err := s.client(ctx)
		return c, test, err
	}
	test.URL = r.url
	if test.Token, err = s.backendToken(ctx, r.backend); err != nil {
		return nil, test, err
	}
	c, err := s.ownClient(ctx, "")
	return c, test, err
}

// testJSON is what a test found, for --json.
type testJSON struct {
	OK     bool                `json:"ok"`
	Sprite string              `json:"sprite,omitempty"`
	Steps  []cove.ExecutorStep `json:"steps"`
}

func runTest(ctx context.Context, inv *invocation, c *cove.Client, test cove.ExecutorTest) error {
	doc := testJSON{Steps: []cove.ExecutorStep{}}
	err := cove.Executors{Client: c}.Test(ctx, test, func(news cove.ExecutorNews) error {
		if s := news.Step; s != nil && s.State.Ended() {
			s.Hint = inv.hints.full(s.Hint)
			doc.Steps = append(doc.Steps, *s)
			if !inv.global.json {
				printTestStep(inv.Out, *s)
			}
		}
		if news.Over {
			doc.OK, doc.Sprite = news.OK, news.Sprite
		}
		return nil
	})
	if err != nil {
		if ctx.Err() != nil {
			inv.say("cove: the server removes what the test has made.")
		}
		return err
	}
	if inv.global.json {
		inv.printJSON(doc)
	}
	if !doc.OK {
		return reportedError{exitFailed}
	}
	return nil
}

// printTestStep prints a line about a step; and why it failed, if it did.
func printTestStep(w io.Writer, s cove.ExecutorStep) {
	detail := s.Detail
	if s.State == cove.StepFailed {
		detail = firstLine(s.Error)
	}
	fmt.Fprintf(w, "%-14s %9.1f ms  %-10s %s\n", printable.Line(string(s.Key)), s.MS, printable.Line(string(s.State)), printable.Line(detail))
	if s.Warning != "" {
		fmt.Fprintf(w, "%-14s warning: %s\n", "", printable.Line(s.Warning))
	}
	if s.State != cove.StepFailed {
		return
	}
	if _, rest, more := strings.Cut(reason(s.Error, s.Output.String()), "\n"); more {
		fmt.Fprintf(w, "%s\n", printable.Text(rest))
	}
	if text := lastOf(s.Output.String(), failedLines); strings.TrimSpace(text) != "" {
		fmt.Fprintf(w, "the last lines of its output:\n%s\n", printable.Text(text))
	}
	if s.Hint != "" {
		fmt.Fprintf(w, "hint: %s\n", printable.Text(s.Hint))
	}
}
