// Package sprites is a Go client for the Sprites protocol: persistent Linux
// sandboxes with commands, files, services, checkpoints and network policy. It
// works against a cove server and against the hosted service.
//
// A command in a sprite is shaped like one of os/exec:
//
//	client := &sprites.Client{URL: "http://127.0.0.1:7878", Token: token}
//	out, err := client.Sprite("paint").Command("go", "test", "./...").Output()
//
// A command that ran and failed gives an [*ExitError]; any other error means that
// the command's end is not known. A command with a [Cmd.Rejoin] survives its connection:
// no byte of its output or input is lost without an error (except input to a terminal), and none
// comes twice.
package sprites
