package web

import "github.com/cove-dev/cove"

// Patterns are those of all routes.
func Patterns() (all []string) {
	for _, r := range routes() {
		all = append(all, r.pattern)
	}
	return all
}

// Hostile is a text as a sprite, an agent or a repository may say it.
const Hostile = hostile

// CommentsOf are the gathered comments of a job, as somebody sees them who may do all.
func CommentsOf(job cove.Job) (string, error) {
	return html("comments", commentsView{jobView: jobView{Job: job, rights: rights{true, true, true}}, Comments: []cove.JobComment{{ID: 1}}})
}
