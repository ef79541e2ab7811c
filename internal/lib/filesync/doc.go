// Package filesync brings a folder of the person's machine and one in a sprite
// into step, one way at a time: only what has changed travels, what was deleted
// is deleted, and what both sides have changed is found and, unless told
// otherwise, refused.
//
// Both ends are the same code (serve.go), each beside its own tree: on the host a
// goroutine, in the sprite `cove-guest sync` over one exec session. The host's
// side (sync.go) asks both for their manifests, compares them with the base, which
// is what the last sync left (plan.go, decide.go), tells the target what is to be
// done, and passes the content on. The target stages it on the file system of the
// tree (stage.go), and applies all of it or nothing: by a journal, with a backup
// of whatever is replaced (work.go, apply.go, undo.go).
//
// The ends speak in frames (wire.go), in lists of records with an end mark and
// their number (codec.go). Nothing that grows with the tree is kept in memory:
// manifests are spooled, sorted, and read side by side.
//
// A sprite is not trusted. Its manifest is checked entry by entry (entry.go), its
// content is compared with the manifest, its sizes with the disk, and no path is
// reached through a link (tree.go).
package filesync
