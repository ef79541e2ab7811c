package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
)

func newJobAnswerCommand(inv *invocation) *cobra.Command {
	var incomplete bool
	cmd := &cobra.Command{
		Use:   "answer JOB [OPTION]",
		Short: "Answer the agent of a job that asks for permission",
		Long: `Answers an agent that waits for permission to do something (a job of --agent acp with
--permissions ask). Without OPTION, it prints the question and the options. OPTION is the number
of an option, or its kind if no other has that: allow_once, allow_always, reject_once,
reject_always.

If cove can't show all of what the agent will run or change, the question says so with !!. An
option that allows it then needs --incomplete.

The question is the agent's own text, and may say anything. Characters that a terminal would act
on are shown, not sent.`,
		Example: `  cove job answer a3f7b2
  cove job answer a3f7b2 1
  cove job answer a3f7b2 reject_once`,
		ValidArgsFunction: completeAnswer(inv),
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef(cmd, "the job's id is missing")
			case len(args) > 2:
				return usagef(cmd, "%q is one argument too many", args[2])
			}
			return nil
		},
		RunE: verb(func(ctx context.Context, args []string) error {
			if err := checkJob(args[0]); err != nil {
				return err
			}
			c, _, err := inv.server.jobs(ctx)
			if err != nil {
				return err
			}
			job, err := c.Job(ctx, args[0])
			if err != nil {
				return jobError(err)
			}
			if job.Question == nil {
				return fail.Newf("no_question", "cove job show "+job.ID, "the agent of job %s has asked nothing (%s)", job.ID, job.State)
			}
			if len(args) == 1 {
				return inv.show(job.Question, func(w io.Writer) {
					printQuestion(w, *job.Question)
					inv.tell(w, "\nAnswer with: cove job answer %s OPTION", job.ID)
				})
			}
			option, err := findOption(*job.Question, args[1])
			if err != nil {
				return hinted(usageError{nil, err}, "cove job answer "+job.ID)
			}
			if job.Question.Incomplete != "" && !incomplete && strings.HasPrefix(option.Kind, "allow") {
				return fail.Newf("bad_request", "cove job answer "+job.ID+" "+option.ID+" --incomplete", "%s Refuse it; or allow it unseen", printable.Line(job.Question.Incomplete))
			}
			job, err = c.AnswerJob(ctx, job.ID, cove.JobAnswer{Question: job.Question.ID, Option: option.ID})
			if err != nil {
				return jobError(err)
			}
			return inv.show(job, printTo(inv, "Answered: %s. Follow it with: cove job logs -f %s", printable.Line(option.Name), job.ID))
		}),
	}
	cmd.Flags().BoolVar(&incomplete, "incomplete", false, "allow it although the question does not show all of it")
	return cmd
}

// findOption finds the option that the typed text means.
func findOption(q cove.JobQuestion, typed string) (cove.QuestionOption, error) {
	var found []cove.QuestionOption
	for _, o := range q.Options {
		if o.ID == typed {
			return o, nil
		}
		if o.Kind == typed {
			found = append(found, o)
		}
	}
	switch len(found) {
	case 0:
		return cove.QuestionOption{}, fmt.Errorf("%q is not one of the options", typed)
	case 1:
		return found[0], nil
	}
	return cove.QuestionOption{}, errors.New("there are several of the kind " + typed + "; name its number")
}

func printQuestion(w io.Writer, q cove.JobQuestion) {
	fields(w, "asks", q.Title, "kind", q.Kind, "file", q.Path)
	printAsked(w, q.Detail, q.Incomplete)
	fmt.Fprintln(w)
	rows := [][]string{{"OPTION", "KIND", "SAYS"}}
	for _, o := range q.Options {
		rows = append(rows, []string{o.ID, o.Kind, o.Name})
	}
	table(w, rows)
}

// printAsked tells what an answer allows, and which part of that is not known.
func printAsked(w io.Writer, detail, incomplete string) {
	if detail != "" {
		fmt.Fprint(w, indented(agents.InputText(detail)))
	}
	if incomplete != "" {
		fmt.Fprint(w, indented("!! "+printable.Line(incomplete)))
	}
}

// completeAnswer completes a job, and then an option of its question.
func completeAnswer(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) != 1 {
			return completeJob(inv)(cmd, args, typed)
		}
		if checkJob(args[0]) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			job, err := c.Job(ctx, args[0])
			if err != nil || job.Question == nil {
				return nil
			}
			var out []string
			for _, o := range job.Question.Options {
				if strings.HasPrefix(o.ID, typed) {
					out = append(out, o.ID+"\t"+printable.Line(o.Name))
				}
			}
			return out
		})
	}
}
