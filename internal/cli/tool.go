package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/sprites"
)

const toolRoles = `--role says which tools there are: read-only (Read, Glob, Grep), edit (Write and Edit, too), full
(Bash, too), or a list such as Read,Bash. If it is given more than once, it allows what all of
them allow. It is enforced in the sprite, and denies what it does not know.`

// maxToolInput bounds the input of a call.
const maxToolInput = 128 << 20

func newToolCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tool",
		Short: "Call the tools that a model has in a sprite",
		Long: `Lists and calls the tools that a model has in a sprite: Read, Write, Edit, Glob, Grep and
Bash.

` + toolRoles,
		Example: `  cove tool list --role read-only
  cove tool call -s paint Read '{"file_path": "main.go"}'`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newToolListCommand(inv), newToolCallCommand(inv))
	return cmd
}

// roleFlag adds --role.
func roleFlag(cmd *cobra.Command, roles *[]string) {
	cmd.Flags().StringArrayVar(roles, "role", []string{tools.Full}, "read-only, edit, full, or a list of tools (repeatable: what all of them allow)")
	must(cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(tools.RoleNames, cobra.ShellCompDirectiveNoFileComp)))
}

// toolJSON is a tool as MCP and the APIs of models have it.
type toolJSON struct {
	Name        string             `json:"name"`
	Description string             `json:"description"`
	InputSchema *jsonschema.Schema `json:"input_schema"`
	ReadOnly    bool               `json:"read_only"`
}

func newToolListCommand(inv *invocation) *cobra.Command {
	var roles []string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the tools of a role",
		Long: `Lists the tools of a role. With --json each has the schema of its input.

` + toolRoles,
		Example: `  cove tool list
  cove tool list --role read-only --json`,
		Args: exactArgs(),
		RunE: verb(func(context.Context, []string) error {
			role, err := tools.ParseRole(roles...)
			if err != nil {
				return usagef(nil, "%v", err)
			}
			list := []toolJSON{}
			rows := [][]string{{"TOOL", "WHAT IT DOES"}}
			for _, t := range tools.List(role) {
				list = append(list, toolJSON{t.Name, t.Description, t.Input, t.ReadOnly})
				first, _, _ := strings.Cut(t.Description, ". ")
				rows = append(rows, []string{t.Name, strings.TrimSuffix(first, ".")})
			}
			return inv.show(struct {
				Tools []toolJSON `json:"tools"`
			}{list}, func(w io.Writer) { table(w, rows) })
		}),
	}
	roleFlag(cmd, &roles)
	return cmd
}

func newToolCallCommand(inv *invocation) *cobra.Command {
	var roles []string
	var dir string
	cmd := &cobra.Command{
		Use:   "call [flags] TOOL JSON|-",
		Short: "Call a tool in a sprite",
		Long: `Calls a tool in a sprite, which wakes if it sleeps, and prints the text that a model would get.
With --json, it prints the result with all its fields. The input is a JSON object, or - for
standard input; cove tool list --json has its schema. A command of Bash that fails is a result
like others: the result has its exit code, and cove's own is 0.

Programs that a call of Bash leaves running are ended with it. To keep one: cove exec --detach.

` + toolRoles,
		Example: `  cove tool call -s paint Read '{"file_path": "main.go", "limit": 20}'
  cove tool call -s paint --role read-only --dir /srv Grep '{"pattern": "TODO"}'
  cove tool call -s paint Write - < input.json`,
		Args: exactArgs("the name of a tool", "its input"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if role, err := tools.ParseRole(roles...); err == nil && len(args) == 0 {
				names = role.Tools()
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: verb(func(ctx context.Context, args []string) error { return toolCall(ctx, inv, dir, roles, args) }),
	}
	roleFlag(cmd, &roles)
	cmd.Flags().StringVar(&dir, "dir", "", "the tools' working directory (default: the sprite's home)")
	return cmd
}

func toolCall(ctx context.Context, inv *invocation, dir string, roles, args []string) error {
	input, err := toolInput(inv, args[1])
	if err != nil {
		return err
	}
	var bash struct {
		Background bool `json:"run_in_background"`
	}
	if args[0] == "Bash" && json.Unmarshal(input, &bash) == nil && bash.Background {
		if _, err := inv.sprite.name(ctx); err != nil { // the hint names it
			return err
		}
		return hinted(usagef(nil, "a command in the background ends with its session, and each call is one of its own"), keepRunning(input))
	}
	sprite, err := inv.spriteHandle(ctx)
	if err != nil {
		return err
	}
	session, err := tools.Open(ctx, sprite, dir, roles...)
	if err != nil {
		return notOpened(ctx, sprite, err)
	}
	defer session.Close()
	result, err := session.CallLast(ctx, args[0], input, func(p tools.Progress) {
		inv.detail("%d s, %s: %s", p.Millis/1000, printable.Bytes(p.Bytes), p.Line)
	})
	if err != nil {
		return err
	}
	var ran tools.BashResult
	if args[0] == "Bash" && json.Unmarshal(result.Data, &ran) == nil && ran.Ended {
		inv.say("cove: to keep a program running: %s", keepRunning(input))
	}
	if !inv.global.json && !isTerminal(inv.Out) { // a program gets the output as it is
		_, err := fmt.Fprintln(inv.Out, result.Text())
		return err
	}
	return inv.show(struct {
		Tool   string          `json:"tool"`
		Result json.RawMessage `json:"result"`
	}{result.Tool, result.Data}, func(w io.Writer) { fmt.Fprintln(w, result.Text()) })
}

// keepRunning is what to type so that the command of a Bash call goes on after the call.
func keepRunning(input json.RawMessage) string {
	command := "CMD"
	var bash tools.BashInput
	if json.Unmarshal(input, &bash) == nil && bash.Command != "" {
		command = "bash -c " + printable.Word(strings.TrimRight(bash.Command, "& \n"))
	}
	return "cove exec --detach " + command
}

// notOpened is why a sprite's tools could not be opened. If there is no such sprite, the name
// was probably mistyped, so the error does not say that the sandbox is gone.
func notOpened(ctx context.Context, sprite *sprites.Sprite, opened error) error {
	if e, ok := errors.AsType[*fail.Error](opened); !ok || e.Code != tools.CodeSandboxGone {
		return opened
	}
	if _, err := sprite.Client().Get(ctx, sprite.Name()); errors.Is(err, sprites.ErrNotFound) {
		return spriteError(err)
	}
	return opened
}

// toolInput is the input of a call, as it is given.
func toolInput(inv *invocation, arg string) (json.RawMessage, error) {
	if arg != "-" {
		return json.RawMessage(arg), nil
	}
	data, err := io.ReadAll(io.LimitReader(inv.In, maxToolInput+1))
	if err != nil {
		return nil, fmt.Errorf("read the input: %w", err)
	}
	if len(data) > maxToolInput {
		return nil, usagef(nil, "the input has more than %s", printable.Bytes(maxToolInput))
	}
	return data, nil
}
