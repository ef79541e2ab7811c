package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/sprites"
)

// completeLimit bounds how long completion holds up the person's typing. It
// starts no server, and is silent when it fails.
const completeLimit = time.Second

// maxCompletions is more than anybody reads.
const maxCompletions = 200

func completeFrom(inv *invocation, cmd *cobra.Command, list func(context.Context, *cove.Client) []string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
	defer cancel()
	c, err := inv.server.runningClient(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return list(ctx, c), cobra.ShellCompDirectiveNoFileComp
}

// candidates are the names in an API's list that begin with prefix, at most maxCompletions
// items of it. of gives an item's name and its description; ok is false if the item is no
// candidate. err is the error of the API's call: after one there are no candidates.
func candidates[T any](list []T, err error, prefix string, of func(T) (name, about string, ok bool)) []string {
	if err != nil {
		return nil
	}
	var names []string
	for _, item := range list[:min(len(list), maxCompletions)] {
		name, about, ok := of(item)
		if !ok || !strings.HasPrefix(name, prefix) {
			continue
		}
		if about != "" {
			name += "\t" + printable.Line(about)
		}
		names = append(names, name)
	}
	return names
}

func completeSprite(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			var names []string
			for info, err := range c.All(ctx, prefix) {
				if err != nil || len(names) == maxCompletions {
					break
				}
				if namePattern().MatchString(info.Name) {
					names = append(names, info.Name+"\t"+string(info.Status))
				}
			}
			return names
		})
	}
}

func completeJob(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			jobs, err := c.Jobs(ctx)
			return candidates(jobs, err, prefix, func(j cove.Job) (string, string, bool) {
				return j.ID, string(j.State) + ", " + j.PlanName, jobPattern().MatchString(j.ID)
			})
		})
	}
}

// completeInside completes with what find returns for the sprite in use. If the sprite
// does not run, it completes nothing: completion wakes no sprite.
func completeInside(inv *invocation, cmd *cobra.Command, find func(context.Context, *sprites.Sprite) []string) ([]string, cobra.ShellCompDirective) {
	return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
		sprite, err := inv.sprite.handle(ctx, c)
		if err != nil {
			return nil
		}
		if info, err := c.Get(ctx, sprite.Name()); err != nil || info.Status != sprites.StatusRunning {
			return nil
		}
		return find(ctx, sprite)
	})
}

// completeService completes a first argument that is a service of the sprite in
// use.
func completeService(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeInside(inv, cmd, func(ctx context.Context, sprite *sprites.Sprite) []string {
			list, err := sprite.Services(ctx)
			return candidates(list, err, prefix, func(s sprites.Service) (string, string, bool) {
				return s.Name, s.State.Status, servicePattern().MatchString(s.Name)
			})
		})
	}
}

// completeSession completes a first argument that is a session of the sprite in use.
func completeSession(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeInside(inv, cmd, func(ctx context.Context, sprite *sprites.Sprite) []string {
			list, err := sprite.Sessions(ctx)
			return candidates(list, err, prefix, func(s sprites.Session) (string, string, bool) {
				return s.ID, s.Command, checkSession(s.ID) == nil
			})
		})
	}
}

func completeSignal(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, name := range usualSignals {
		if strings.HasPrefix(name, strings.ToUpper(prefix)) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSide completes an argument of cp: a file of this machine, by the shell, or a
// sprite's name with a colon.
func completeSide(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 || strings.ContainsAny(prefix, "/:") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		names, _ := completeSprite(inv)(cmd, args, prefix)
		for i, name := range names {
			name, status, _ := strings.Cut(name, "\t")
			names[i] = name + ":\t" + status
		}
		if len(names) == 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return names, cobra.ShellCompDirectiveNoSpace
	}
}

// completeTarget completes with the hosts that the sprite in use has reached or was
// refused. It takes the events that pick accepts, the newest first.
func completeTarget(inv *invocation, pick func(sprites.NetworkEvent) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			sprite, err := inv.sprite.handle(ctx, c)
			if err != nil {
				return nil
			}
			var seen []string
			_ = sprite.NetworkLog(ctx, sprites.NetworkLogOptions{Connections: true}, func(e sprites.NetworkEvent) error {
				if pick(e) {
					seen = append(seen, netrules.Of(e))
				}
				return nil
			})
			var targets []string
			for _, target := range slices.Backward(seen) {
				if len(targets) < maxCompletions && target != "" && strings.HasPrefix(target, prefix) && !slices.Contains(targets, target) && !slices.Contains(args, target) {
					targets = append(targets, target)
				}
			}
			return targets
		})
	}
}

// completeOneSprite completes a first argument that is a sprite's name.
func completeOneSprite(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeSprite(inv)(cmd, args, prefix)
	}
}

// completePort completes a port, after LOCAL: or HOST: if that is there already, by
// those that are listened on in the sprite.
func completePort(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		before := prefix[:strings.LastIndexByte(prefix, ':')+1]
		return completeInside(inv, cmd, func(ctx context.Context, sprite *sprites.Sprite) []string {
			w, err := sprite.WatchPorts(ctx)
			if err != nil {
				return nil
			}
			_ = w.Close()
			var ports []string
			for _, e := range w.Open() {
				port := before + strconv.Itoa(e.Port)
				if strings.HasPrefix(port, prefix) && len(ports) < maxCompletions {
					ports = append(ports, port+"\t"+e.Address)
				}
			}
			return ports
		})
	}
}

// bashFallback is for shells without the package bash-completion, on which cobra's
// script relies. It splits words at colons no better than bash does.
const bashFallback = `if ! declare -F _get_comp_words_by_ref >/dev/null; then
    _get_comp_words_by_ref() {
        cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]:-} cword=$COMP_CWORD
        words=("${COMP_WORDS[@]}")
    }
fi
`

func newCompletionCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a completion script for a shell",
		Long: `Prints a script that lets a shell complete cove's commands and flags, the names of
sprites and images and the ids of jobs. Completion never starts a server.

The script for bash works best with the package bash-completion, and also without it.`,
		Example: `  source <(cove completion bash)                  in ~/.bashrc
  cove completion zsh > "${fpath[1]}/_cove"
  cove completion fish > ~/.config/fish/completions/cove.fish`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      exactArgs("the shell's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				fmt.Fprint(inv.Out, bashFallback)
				return root.GenBashCompletionV2(inv.Out, true)
			case "zsh":
				return root.GenZshCompletion(inv.Out)
			case "fish":
				return root.GenFishCompletion(inv.Out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(inv.Out)
			}
			return usagef(cmd, "no completion for the shell %q", args[0])
		},
	}
}
