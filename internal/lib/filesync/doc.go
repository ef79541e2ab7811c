// Package filesync synchronizes a folder of the person's machine with one in a sprite, one way
// at a time. Only changes travel, and deleted files are deleted. It finds files that both
// sides have changed, and refuses them unless told otherwise.
//
// Both ends are the same code (serve.go), each beside its own tree: on the host a
// goroutine, in the sprite `cove-guest sync` over one exec session. The host's side (sync.go)
// asks both for their manifests, and compares these with the base, the state that the last
// sync left (plan.go, decide.go). Then it sends the operations to the target, and passes the
// content on. The target stages the content on the file system of the tree (stage.go), and
// applies all or nothing. For that it has a journal, and a backup of whatever is replaced
// (work.go, apply.go, undo.go).
//
// The ends speak in frames (wire.go), in lists of records with an end mark and
// their number (codec.go). Nothing that grows with the tree is kept in memory:
// manifests are spooled, sorted, and read side by side.
//
// A sprite is not trusted. The host checks its manifest entry by entry (entry.go), and
// compares its content with the manifest, and its sizes with the disk. No path is reached
// through a link (tree.go).
package filesync
