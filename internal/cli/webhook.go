package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

func newWebhookCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Call a URL when something happens",
		Long: `A webhook is a URL that the server calls when a job or a sprite changes: for programs that wait
for events. Each call is a POST of a small JSON document. It has the event's id, type and time,
and the job or sprite as the API shows it.

The calls are signed (docs/webhooks.md), and come in order. A call that is not answered with a
status 2xx is retried for 24 hours; after most answers 3xx and 4xx, only for 10 minutes. A call may
come twice, with the same id.

To define a webhook, a token needs the verb admin.`,
		Example: `  cove webhook put https://hooks.example.org/cove --events job.ended,job.question
  cove webhook test hooks-example-org
  cove webhook log hooks-example-org
  cove webhook rm hooks-example-org`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newWebhookPutCommand(inv), newWebhookListCommand(inv), asksFirst(inv, newWebhookRmCommand(inv), eachLost("webhook %s, and what waits to be sent to it")),
		newWebhookTestCommand(inv), newWebhookLogCommand(inv))
	return cmd
}

func newWebhookPutCommand(inv *invocation) *cobra.Command {
	var def cove.Webhook
	cmd := &cobra.Command{
		Use:   "put URL",
		Short: "Define a webhook",
		Long: `Defines a webhook, or replaces the one of the same name, and keeps its deliveries. The events
are ` + strings.Join(cove.WebhookEvents[:5], ", ") + `,
` + strings.Join(cove.WebhookEvents[5:8], ", ") + `,
` + strings.Join(cove.WebhookEvents[8:], ", ") + `; '*' is all of them.

Without --secret the server makes a key, which this command prints once. With --secret the
calls are signed with that secret (cove secret set NAME).

The server follows no redirect. It refuses http, and addresses that are not public, unless
--private is given.`,
		Example: `  cove webhook put https://hooks.example.org/cove --events job.ended,job.question
  cove webhook put https://ci.example.org/hook --name ci --events '*' --secret ci-hook
  cove webhook put http://127.0.0.1:8099/ --name local --events job.ended --private`,
		Args: exactArgs("the URL"),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		def.URL = args[0]
		named := cmd.Flags().Changed("name")
		if !named {
			u, err := url.Parse(def.URL)
			if err != nil || u.Hostname() == "" {
				return usagef(cmd, "%q is not a URL", def.URL)
			}
			def.Name = webhookName(u.Hostname())
		}
		if !connectorPattern().MatchString(def.Name) {
			return usagef(cmd, "%q can't be a webhook's name: it has lower-case letters, digits and hyphens; give one: --name NAME", def.Name)
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		hooks := cove.Webhooks{Client: c}
		if !named {
			all, err := hooks.List(ctx)
			if err != nil {
				return err
			}
			for _, h := range all {
				if h.Name == def.Name && h.URL != def.URL {
					return fail.Newf("exists", "give this one a name: --name NAME; or replace that one: --name "+def.Name, "the webhook %s leads to %s", h.Name, printable.Line(h.URL))
				}
			}
		}
		made, err := hooks.Put(ctx, def)
		if err != nil {
			return err
		}
		return inv.show(made, func(w io.Writer) {
			if made.SigningSecret != "" {
				fmt.Fprintln(w, made.SigningSecret)
				inv.say("This key signs the calls of webhook %s. It is shown only now.", made.Name)
			}
			inv.say("Try it with: cove webhook test %s", made.Name)
		})
	})
	f := cmd.Flags()
	f.StringVar(&def.Name, "name", "", "its name (default: the URL's host, with hyphens)")
	f.StringSliceVar(&def.Events, "events", nil, "the events that it is called for")
	f.StringVar(&def.Secret, "secret", "", "name of the secret that signs (default: one that the server makes)")
	f.BoolVar(&def.Private, "private", false, "let it lead to an address that is not public, and over http")
	must(cmd.MarkFlagRequired("events"))
	must(cmd.RegisterFlagCompletionFunc("events", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return cove.WebhookEvents, cobra.ShellCompDirectiveNoFileComp
	}))
	must(cmd.RegisterFlagCompletionFunc("secret", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeSecret(inv)(cmd, nil, prefix)
	}))
	return cmd
}

// webhookName makes a name of a host.
func webhookName(host string) string {
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(host)), "-")
	return strings.Trim(name[:min(len(name), 40)], "-")
}

func newWebhookListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the webhooks",
		Long:    `Lists the webhooks, with their events, and how many deliveries wait.`,
		Example: `  cove webhook list`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			list, err := cove.Webhooks{Client: c}.List(ctx)
			if err != nil {
				return err
			}
			return inv.show(cove.WebhookList{Webhooks: list}, func(w io.Writer) {
				rows := [][]string{{"NAME", "URL", "EVENTS", "SECRET", "WAITING"}}
				for _, h := range list {
					rows = append(rows, []string{h.Name, h.URL, strings.Join(h.Events, ","), h.Secret, strconv.Itoa(h.Pending)})
				}
				table(w, rows)
			})
		}),
	}
}

func newWebhookRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Delete webhooks",
		Long: `Deletes webhooks, with their waiting deliveries, and with the keys that the server made for them.
A secret of your own stays.`,
		Example: `  cove webhook rm ci`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the webhook's name is missing")
			}
			return nil
		},
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeWebhook(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			return removeEach(ctx, inv, args, func(name string) error { return cove.Webhooks{Client: c}.Delete(ctx, name) })
		}),
	}
}

func newWebhookTestCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "test NAME",
		Short: "Call a webhook now",
		Long: `Sends an event of the type webhook.test at once, without retries, and shows the result. Waiting
deliveries stay as they are.`,
		Example:           `  cove webhook test ci`,
		Args:              exactArgs("the webhook's name"),
		ValidArgsFunction: completeWebhook(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			d, err := cove.Webhooks{Client: c}.Test(ctx, args[0])
			if err != nil {
				return err
			}
			if d.State != cove.DeliveryDelivered {
				return fail.Newf("not_delivered", "see where it leads: cove webhook list", "webhook %s: %s", args[0], printable.Line(d.Error))
			}
			return inv.show(d, func(io.Writer) { inv.say("Delivered, with status %d.", d.Status) })
		}),
	}
}

func newWebhookLogCommand(inv *invocation) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "log NAME",
		Short: "Show the deliveries to a webhook",
		Long: `Shows the deliveries to a webhook, the oldest first: those that wait, and the last 500 that were
delivered, failed or dropped. At most 1000 wait; one more drops the oldest.`,
		Example: `  cove webhook log ci
  cove webhook log ci --limit 1000 --json`,
		Args:              exactArgs("the webhook's name"),
		ValidArgsFunction: completeWebhook(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if limit < 1 {
			return usagef(cmd, "--limit %d: must be 1 or more", limit)
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		list, err := cove.Webhooks{Client: c}.Log(ctx, args[0], limit)
		if err != nil {
			return err
		}
		return inv.show(cove.WebhookLog{Deliveries: list}, func(w io.Writer) {
			rows := [][]string{{"TIME", "EVENT", "TYPE", "STATE", "ATTEMPTS", "STATUS", "ERROR"}}
			for i := len(list) - 1; i >= 0; i-- {
				d := list[i]
				status := "-"
				if d.Status != 0 {
					status = strconv.Itoa(d.Status)
				}
				rows = append(rows, []string{d.CreatedAt.Local().Format(time.DateTime), d.Event, d.Type, d.State, strconv.Itoa(d.Attempts), status, printable.Line(d.Error)})
			}
			table(w, rows)
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 50, "how many, the newest")
	return cmd
}

// completeWebhook completes the name of a webhook.
func completeWebhook(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			list, err := cove.Webhooks{Client: c}.List(ctx)
			return candidates(list, err, prefix, func(h cove.Webhook) (string, string, bool) {
				return h.Name, h.URL, connectorPattern().MatchString(h.Name)
			})
		})
	}
}
