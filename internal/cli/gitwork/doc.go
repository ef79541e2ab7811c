// Package gitwork is git on the person's machine: bundles out, and the commits
// of a job in, safely.
//
// A job's commits are hostile. The package reads them only in scratch repositories,
// whose configuration is ours, and which borrow the objects of the person's
// repository. Nothing of a job reaches that repository before every check has
// passed. Every git process has a scrubbed environment and configuration, no
// hooks, no filters, no network, and a deadline. The checked commits are moved in as
// one pack and one transaction of refs under refs/cove/JOB/.
//
// cove's own files in a repository are in the folder cove of its common git
// directory. They are the lock, the journal of a fast-forward under way, temporary
// files, and a note of the root commits.
package gitwork
