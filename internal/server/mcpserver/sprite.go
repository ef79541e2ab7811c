package mcpserver

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// maxListed is how many sprites, or jobs, one answer lists.
const maxListed = 500

// spriteTools are the tools that manage sprites.
func spriteTools() []*tool {
	return []*tool{
		define(tool{
			name: "list", verb: cove.VerbRead, roles: readers, many: true,
			description: "List the sandboxes that there are, with their states. One that is not running wakes with its next use.",
		}, listSprites),
		define(tool{
			name: "create", effect: adds, verb: cove.VerbWrite, roles: full, many: true,
			description: "Make a sandbox: a Linux computer of its own, with a disk that stays.",
		}, createSprite),
		define(tool{
			name: "rm", effect: destroys, verb: cove.VerbWrite, roles: full, many: true, one: true,
			description: "Destroy a sandbox with its disk and its checkpoints. One that holds work of a job that nobody has fetched is refused.",
		}, removeSprite),
		define(tool{
			name: "fork", effect: adds, verb: cove.VerbWrite, roles: full, many: true, one: true,
			description: "Make another sandbox that begins as a copy of this one, with what runs in it, or of one of its checkpoints.",
		}, forkSprite),
		define(tool{
			name: "ports", verb: cove.VerbRead, roles: readers, one: true,
			description: "List the TCP ports that are listened on in the sandbox, and how they are reached from outside.",
		}, listPorts),
		define(tool{
			name: "checkpoint_create", effect: adds, verb: cove.VerbWrite, roles: editors, one: true,
			description: "Keep the state of the sandbox's disk as it is now, so that checkpoint_restore can go back to it. What runs goes on.",
		}, createCheckpoint),
		define(tool{
			name: "checkpoint_list", verb: cove.VerbRead, roles: readers, one: true,
			description: "List the sandbox's checkpoints, the newest first.",
		}, listCheckpoints),
		define(tool{
			name: "checkpoint_restore", effect: destroys, verb: cove.VerbWrite, roles: full, one: true,
			description: "Bring the sandbox's disk back to a checkpoint. What runs in it ends; the disk as it was is kept as a checkpoint.",
		}, restoreCheckpoint),
	}
}

type nothing struct{}

// spriteInfo is a sprite as a model needs it.
type spriteInfo struct {
	Name   string `json:"name"`
	Status string `json:"status" jsonschema:"running, warm or cold."`
	URL    string `json:"url,omitempty" jsonschema:"Where its HTTP service is reached."`
}

func infoOf(info sprites.Info) spriteInfo {
	return spriteInfo{Name: info.Name, Status: string(info.Status), URL: info.URL}
}

type spriteList struct {
	Sprites []spriteInfo `json:"sprites"`
	More    bool         `json:"more,omitempty" jsonschema:"There are more than these."`
}

func listSprites(ctx context.Context, c call, _ nothing) (spriteList, error) {
	list := spriteList{Sprites: []spriteInfo{}}
	for info, err := range c.server.Client.All(ctx, c.server.Within.Prefix) {
		if err != nil {
			return list, err
		}
		if !c.server.Within.Has(info.Name) {
			continue
		}
		if len(list.Sprites) == maxListed {
			list.More = true
			break
		}
		list.Sprites = append(list.Sprites, infoOf(info))
	}
	return list, nil
}

type createArgs struct {
	Name     string `json:"name" jsonschema:"The new sandbox's name."`
	Image    string `json:"image,omitempty" jsonschema:"The OCI image that its disk starts from, which the server must have. Default: the tools of the server's machine."`
	MemoryMB int    `json:"memory_mb,omitempty" jsonschema:"Its memory. Default: the server's."`
	DiskMB   int    `json:"disk_mb,omitempty" jsonschema:"How much of the disk it may take, checkpoints included. Default: no limit."`
	CPUs     int    `json:"cpus,omitempty" jsonschema:"How many CPUs it may use. Default: the server's."`
	Network  string `json:"network,omitempty" jsonschema:"What it may reach: open, none, agent or defaults. Default: no rules."`
}

func createSprite(ctx context.Context, c call, in createArgs) (spriteInfo, error) {
	if err := c.server.Within.check(in.Name); err != nil {
		return spriteInfo{}, err
	}
	req := sprites.CreateRequest{Name: in.Name}
	if in.Image != "" || in.MemoryMB != 0 || in.CPUs != 0 || in.DiskMB != 0 {
		req.Config = &sprites.Config{Image: in.Image, RAMMB: in.MemoryMB, CPUs: in.CPUs, StorageMB: in.DiskMB}
	}
	if in.Network != "" {
		req.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: in.Network}}}
	}
	info, err := c.server.Client.Create(ctx, req)
	return infoOf(info), err
}

type removed struct {
	Removed string `json:"removed"`
}

func removeSprite(ctx context.Context, c call, _ nothing) (removed, error) {
	return removed{c.sprite}, c.server.Client.Delete(ctx, c.sprite, sprites.DeleteOptions{})
}

type forkArgs struct {
	Name       string `json:"name" jsonschema:"The new sandbox's name."`
	Checkpoint string `json:"checkpoint,omitempty" jsonschema:"Copy this checkpoint. Default: the sandbox as it is now."`
}

func forkSprite(ctx context.Context, c call, in forkArgs) (spriteInfo, error) {
	if err := c.server.Within.check(in.Name); err != nil {
		return spriteInfo{}, err
	}
	info, err := c.handle().Fork(ctx, sprites.ForkRequest{Name: in.Name, Checkpoint: in.Checkpoint})
	return infoOf(info), err
}

type port struct {
	Port    int    `json:"port"`
	Address string `json:"address" jsonschema:"What it is bound to."`
	PID     int    `json:"pid,omitempty"`
	Forward string `json:"forward" jsonschema:"The command by which a person brings the port to their own machine."`
}

type portList struct {
	URL   string `json:"url,omitempty" jsonschema:"Where the sandbox's HTTP service is reached."`
	Ports []port `json:"ports"`
}

func listPorts(ctx context.Context, c call, _ nothing) (portList, error) {
	list := portList{Ports: []port{}}
	info, err := c.server.Client.Get(ctx, c.sprite)
	if err != nil {
		return list, err
	}
	list.URL = info.URL
	watch, err := c.handle().WatchPorts(ctx)
	if err != nil {
		return list, err
	}
	defer watch.Close()
	for _, e := range watch.Open() {
		at := fmt.Sprint(e.Port)
		if ip := net.ParseIP(e.Address); ip != nil && !ip.IsUnspecified() && !ip.Equal(net.IPv4(127, 0, 0, 1)) {
			at = net.JoinHostPort(e.Address, at)
		}
		list.Ports = append(list.Ports, port{Port: e.Port, Address: e.Address, PID: e.PID, Forward: "cove proxy -s " + c.sprite + " " + at})
	}
	return list, nil
}

// checkpointInfo is a checkpoint as a model needs it.
type checkpointInfo struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Comment string    `json:"comment,omitempty"`
	Memory  bool      `json:"memory,omitempty" jsonschema:"What ran then was kept, too."`
	NotKept string    `json:"memory_not_kept,omitempty" jsonschema:"Why what ran was not kept, though you asked for it."`
	Health  string    `json:"health,omitempty" jsonschema:"What is the matter with it. Nothing: it is whole."`
}

func checkpointOf(c sprites.Checkpoint) checkpointInfo {
	info := checkpointInfo{ID: c.ID, Created: c.CreateTime, Comment: c.Comment, Health: c.Health}
	if c.Cove != nil {
		info.Memory, info.NotKept = c.Cove.MemoryBytes > 0, c.Cove.MemoryNotKept
	}
	return info
}

type checkpointArgs struct {
	Comment string `json:"comment,omitempty" jsonschema:"What it is of, for who looks for it."`
	Memory  bool   `json:"memory,omitempty" jsonschema:"Keep what runs, too."`
}

func createCheckpoint(ctx context.Context, c call, in checkpointArgs) (checkpointInfo, error) {
	req := sprites.CheckpointRequest{Comment: in.Comment}
	if in.Memory {
		req.Memory = sprites.KeepAuto
	}
	made, err := c.handle().Checkpoint(ctx, req, c.events())
	return checkpointOf(made), err
}

// events passes the server's events on as progress.
func (c call) events() func(sprites.CheckpointEvent) {
	return func(e sprites.CheckpointEvent) {
		if e.Data != "" {
			c.progress(e.Data)
		}
	}
}

type checkpointList struct {
	Checkpoints []checkpointInfo `json:"checkpoints"`
}

func listCheckpoints(ctx context.Context, c call, _ nothing) (checkpointList, error) {
	list := checkpointList{Checkpoints: []checkpointInfo{}}
	all, err := c.handle().Checkpoints(ctx, true)
	for _, one := range all {
		list.Checkpoints = append(list.Checkpoints, checkpointOf(one))
	}
	return list, err
}

type restoreArgs struct {
	Checkpoint string `json:"checkpoint" jsonschema:"Its id."`
}

type restored struct {
	Checkpoint string `json:"checkpoint" jsonschema:"What the sandbox is now."`
	Replaced   string `json:"replaced,omitempty" jsonschema:"The checkpoint of what it was."`
}

func restoreCheckpoint(ctx context.Context, c call, in restoreArgs) (restored, error) {
	r, err := c.handle().RestoreCheckpoint(ctx, in.Checkpoint, sprites.RestoreRequest{}, c.events())
	return restored{Checkpoint: r.Checkpoint, Replaced: r.Replaced}, err
}
