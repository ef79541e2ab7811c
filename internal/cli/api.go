package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

func newAPICommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Describe the server's HTTP API",
		Long: `cove does everything through the server's HTTP API, which any program can call. The API describes
itself, as OpenAPI.`,
		Example: `  cove api openapi > openapi.json`,
		Args:    subcommandOnly,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "openapi",
		Short: "Print the API's OpenAPI document",
		Long: `Prints the OpenAPI 3.1 document of the server's API, as JSON: its routes, their parameters and
bodies, and the codes of errors. The server also serves it at /v1/openapi.json.`,
		Example: `  cove api openapi > openapi.json`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			text, err := cove.OpenAPI(ctx, c)
			if err != nil {
				return err
			}
			_, err = inv.Out.Write(text)
			return err
		}),
	})
	return cmd
}
