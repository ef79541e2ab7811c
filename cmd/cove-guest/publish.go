package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
)

// maxOrder bounds a cove.PublishOrder.
const maxOrder = 64 << 10

// publish reads a cove.PublishOrder, and writes the cove.PublishVerdict. It is run in a sprite
// that is made for it, with the person's half of git, since that is what judges the files.
func publish(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	var order cove.PublishOrder
	if err := json.NewDecoder(io.LimitReader(in, maxOrder)).Decode(&order); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "publish-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	verdict, err := gitwork.Publish(ctx, dir, order)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(verdict)
}
