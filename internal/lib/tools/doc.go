// Package tools has the tools that a model may call to act in a sandbox: Read, Write, Edit,
// Glob, Grep and Bash. Both halves are here. Serve carries the calls out, in the sprite, as
// `cove-guest tool serve`. A Session makes them over one exec session, so that it works with
// any server of the protocol.
//
// Only Bash has to do with a shell: paths, patterns and contents reach the system
// as they are. The sprite's half refuses calls that a role does not allow. A call whose
// sandbox is gone is an error, and is never carried out anywhere else.
package tools
