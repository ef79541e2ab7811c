package sprites_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"strings"
	"time"

	"github.com/cove-dev/cove/sprites"
)

func Example() {
	ctx := context.Background()
	client := &sprites.Client{URL: "http://127.0.0.1:7878", Token: os.Getenv("COVE_TOKEN")}
	if _, err := client.Create(ctx, sprites.CreateRequest{Name: "paint"}); err != nil && !errors.Is(err, sprites.ErrNameTaken) {
		log.Fatal(err)
	}
	out, err := client.Sprite("paint").Command("go", "version").Output()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
}

// The command's failure and the system's are different errors.
func ExampleCmd_Run() {
	client := &sprites.Client{URL: "http://127.0.0.1:7878"}
	cmd := client.Sprite("paint").Command("go", "test", "./...")
	cmd.Dir = "/home/sprite/project"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok {
		fmt.Println("the tests failed, with code", exit.Code)
	} else if err != nil {
		fmt.Println("whether the tests pass is not known:", err)
	}
}

// A command survives a lost connection, and here the restart of its server, too.
func ExampleCmd_rejoin() {
	sprite := (&sprites.Client{URL: "http://127.0.0.1:7878"}).Sprite("paint")
	cmd := sprite.Command("go", "test", "./...")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	patience := 5 * time.Minute
	cmd.MaxRunAfterDisconnect = &patience
	var tries int
	cmd.Rejoin = func(ctx context.Context, lost error) (*sprites.Sprite, error) {
		if tries++; tries > 5 {
			return nil, lost
		}
		for range 60 {
			if _, err := sprite.Client().Version(ctx); err == nil {
				return sprite, nil
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return nil, lost
	}
	err := cmd.Run()
	if e, ok := errors.AsType[*sprites.LostOutputError](err); ok {
		fmt.Println("the end of the output is there; the exit code is", e.Code)
	} else if err != nil {
		fmt.Println(err)
	}
}

func ExampleSprite_FS() {
	client := &sprites.Client{URL: "http://127.0.0.1:7878"}
	tree := client.Sprite("paint").FS(context.Background(), "/home/sprite/project")
	names, err := fs.Glob(tree, "*.go")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(names)
}

func ExampleSprite_WriteFile() {
	client := &sprites.Client{URL: "http://127.0.0.1:7878"}
	plan := strings.NewReader("# Plan\n")
	err := client.Sprite("paint").WriteFile(context.Background(), "plan.md", plan, sprites.WriteOptions{Mode: 0o600})
	if errors.Is(err, fs.ErrPermission) {
		fmt.Println("the sprite's user may not write there")
	}
}
