package build

import (
	"context"
	"errors"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// maxRefusals is how many refusals of a command are told.
const maxRefusals = 5

// errEnough ends the reading of a log.
var errEnough = errors.New("enough refusals")

// refusals tells which targets the network rules refused to the command of a sprite, each once. It
// returns the flags that would allow them.
func (r *run) refusals(ctx context.Context, sprite string) (flags string) {
	seen := map[string]bool{}
	var all []string
	err := r.Client.Sprite(sprite).NetworkLog(ctx, sprites.NetworkLogOptions{}, func(e sprites.NetworkEvent) error {
		if e.Allowed {
			return nil
		}
		allow := allowFlags(e.Hint)
		key := allow
		if key == "" {
			key = e.Protocol + " " + e.Name + " " + e.Hint
		}
		if seen[key] {
			return nil
		}
		if len(seen) == maxRefusals {
			return errEnough
		}
		seen[key] = true
		if e.Process = nil; allow != "" {
			all = append(all, allow)
			e.Hint = "allow it: " + allow
		}
		r.tell(cove.ImageBuildEvent{Type: cove.BuildRefused, Refused: &e})
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) && ctx.Err() == nil {
		r.Logger.Warn("what the network refused to a step of a build can't be reported", "err", err)
	}
	return strings.Join(all, " ")
}

// allowFlags are the flags of a build that allow the same as a hint about a sprite; empty: the hint
// allows nothing.
func allowFlags(hint string) string {
	const command = "cove policy allow "
	at := strings.LastIndex(hint, command)
	if at < 0 {
		return ""
	}
	words := strings.Fields(hint[at+len(command):])
	if len(words) > 2 && words[0] == "-s" {
		words = words[2:]
	}
	for _, word := range words {
		if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" { // to be filled in
			return ""
		}
	}
	return "--allow " + strings.Join(words, " --allow ")
}
