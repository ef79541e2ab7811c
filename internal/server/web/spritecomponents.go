package web

import (
	"net/netip"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// spriteComponents are those of one sprite.
func spriteComponents() []component {
	now := time.Now()
	awake := spriteHead{Info: sprites.Info{Name: "paint", Status: sprites.StatusRunning, CreatedAt: now, Cove: &sprites.Details{IdleSeconds: 60, AwakeBy: []string{"exec"}}}, Write: true, Exec: true}
	asleep, held := awake, awake
	asleep.Info.Status, asleep.Tab = sprites.StatusCold, "files"
	held.Info.Cove = &sprites.Details{Held: &sprites.Held{Message: "its disk is full", Hint: "cove update --disk 20G paint", Since: now}}
	deleting := awake
	deleting.Unpulled = []string{"0a1b2c"}
	address := netip.MustParseAddr("203.0.113.7")
	event := sprites.NetworkEvent{Time: now, Protocol: "tcp", Name: hostile, Address: &address, Port: 443, Process: &sprites.Process{Name: "curl", PID: 7}}
	line := chart{Title: "Memory", Now: "1.0 GiB", Most: "2.0 GiB", Line: "M0 58L120 20L240 30", Area: "M0 58L120 20L240 30L240 60L0 60Z"}
	rule := sprites.NetworkRule{Domain: "example.org", Action: "allow", Ports: []string{"443"}}
	point := point{Checkpoint: sprites.Checkpoint{ID: "v2", Comment: "tests pass " + hostile, CreateTime: now, Cove: &sprites.CheckpointDetails{Labels: []string{"green"}, DiskUse: &sprites.DiskUse{SizeBytes: 4 << 30, AddedBytes: 3 << 20}}}, Tree: "│ * "}
	entry := sprites.Entry{Name: "notes.txt", Path: "/home/sprite/notes.txt", Type: "file", Size: 12, Mode: "0644", ModTime: now}
	exited := 1
	return []component{
		{"sprite-head", "awake", awake},
		{"sprite-state", "asleep", asleep},
		{"sprite-state", "held", held},
		{"sprite-wake", "asleep", asleepPage{Head: asleep, What: "see its files", Again: "/web"}},
		{"sprite-overview", "awake", overviewPage{Head: awake, Awake: []string{"exec"}, Charts: []chart{line}, Facts: []fact{{"Base", "host"}}}},
		{"sprite-overview", "held", overviewPage{Head: held}},
		{"sprite-deeds", "with work that nobody has pulled", deleting},
		{"sprite-charts", "measured", overviewPage{Charts: []chart{line}}},
		{"sprite-charts", "nothing measured", overviewPage{}},
		{"chart", "a line", line},
		{"chart", "not measured", chart{Title: "Memory"}},
		{"file-entries", "a folder and a file", filesPage{Head: awake, Entries: []sprites.Entry{{Name: "src", Path: "/home/sprite/src", IsDir: true}, entry, {Name: hostile, Path: "/home/sprite/" + hostile, Type: "file"}}, More: 3}},
		{"file-entries", "empty", filesPage{Head: awake}},
		{"file-changed", "while it was edited", staleFile{problem{Message: "/home/sprite/notes.txt has changed since it was shown here; nothing was written"}, "/web/sprites/paint/files?path=%2Fhome%2Fsprite%2Fnotes.txt", "d1g35t", false}},
		{"file-changed", "deleted while it was edited", staleFile{problem{Message: "/home/sprite/notes.txt was deleted since it was shown here; nothing was written"}, "/web/sprites/paint/files?path=%2Fhome%2Fsprite%2Fnotes.txt", gone, true}},
		{"file-view", "to edit", filesPage{Head: awake, Entry: entry, View: &fileView{Text: "one\n", Shown: true, Edits: true}}},
		{"file-view", "binary", filesPage{Head: awake, Entry: entry, View: &fileView{Why: "This file is binary."}}},
		{"service-state", "running", sprites.ServiceState{Status: sprites.ServiceRunning}},
		{"service-state", "failed", sprites.ServiceState{Status: sprites.ServiceFailed, RestartCount: 3, Error: "exit code 1", ExitCode: &exited}},
		{"service-do", "a button", dictOf("Head", awake, "Service", "web", "Deed", "stop", "Text", "Stop")},
		{"service-log", "nothing said yet", nil},
		{"log-line", "standard error", logLine{now, sprites.ServiceEventStderr, "no such file " + hostile}},
		{"checkpoint", "with labels", dictOf("Head", awake, "Point", point)},
		{"checkpoint-frees", "some", sprites.DiskUse{OwnBytes: 3 << 20}},
		{"checkpoint-frees", "nothing", sprites.DiskUse{}},
		{"diff-summary", "some", sprites.DiffSummary{Added: 2, AddedBytes: 4096}},
		{"diff-entries", "a change", diffPage{Head: awake, From: "v1", Entries: []sprites.DiffEntry{{Change: sprites.DiffChanged, Path: "/a " + hostile, Type: "file", Size: 2, OldSize: 1, What: []string{"size"}}}}},
		{"diff-entries", "a file that was removed", diffPage{Head: awake, From: "v1", Entries: []sprites.DiffEntry{{Change: sprites.DiffRemoved, Path: "/old", Type: "file", OldSize: 3 << 20}}}},
		{"diff-entries", "none", diffPage{Head: awake}},
		{"prune-preview", "some", checkpointsPage{Head: awake, Request: sprites.PruneRequest{Retention: &sprites.Retention{Last: 1}}, Prune: &sprites.PruneResult{Removed: []sprites.PruneItem{{ID: "auto-1", CreateTime: now}}, Kept: []sprites.PruneItem{{ID: "v1", Why: "somebody asked for it"}}}}},
		{"network-log", "refused", networkLog{awake, []refused{{NetworkEvent: event, Target: hostile + ":443", Rule: "no rule", Opens: "example.org:443", Count: 3}}}},
		{"network-log", "nothing", networkLog{Head: awake}},
		{"network-rules", "some", dictOf("Head", awake, "Rules", []sprites.NetworkRule{{Include: "agent"}, rule})},
		{"network-allow", "asked", allowPage{Head: awake, Rule: rule, Text: "example.org:443", Opens: opens(rule), Was: "refused now: no rule"}},
		{"network-decision", "refused", sprites.PolicyDecision{Target: "example.org:443", Rule: "no rule"}},
		{"network-learn", "some", learnPage{Head: awake, Rules: []sprites.NetworkRule{rule}}},
	}
}
