package cli

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// entrypointName is the name of the service that --run-entrypoint defines.
const entrypointName = "entrypoint"

// entrypoint is the service that runs what an image names as its program. It runs in the
// image's WORKDIR, or the root folder, with its ENV. The sprite's own user is the image's USER. If
// the image names none, the service is root's: that is whom the program was written for.
func entrypoint(image cove.Image) (sprites.Service, error) {
	c := image.Config
	argv := slices.Concat(c.Entrypoint, c.Cmd)
	if len(argv) == 0 || argv[0] == "" {
		return sprites.Service{}, hinted(fmt.Errorf("image %s has neither an ENTRYPOINT nor a CMD", imageName(image)),
			"leave --run-entrypoint out, and start a program as a service: cove service put SERVICE CMD")
	}
	user := ""
	if c.User == "" {
		user = "root"
	}
	return sprites.Service{
		Dir: path.Join("/", c.Workdir), Name: entrypointName, Cmd: argv[0], Args: argv[1:], HTTPPort: c.HTTPPort(), StopSignal: c.StopSignal, User: user,
	}, nil
}

// startEntrypoint defines the service in a new sprite, and starts it.
func startEntrypoint(ctx context.Context, inv *invocation, c *cove.Client, name string, def sprites.Service) error {
	s := c.Sprite(name)
	err := s.PutService(ctx, def, followService(inv, time.Second))
	if err != nil {
		return err
	}
	d, err := s.Service(ctx, def.Name)
	if err == nil && d.State.Status == sprites.ServiceFailed {
		err = fail.Newf("service_failed", "it is tried again; see: cove service logs "+def.Name+" -s "+name, "service %s does not run: %s", def.Name, printable.Line(d.State.Error))
	}
	return err
}
