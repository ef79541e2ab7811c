package web

// Patterns are those of all routes.
func Patterns() (all []string) {
	for _, r := range routes() {
		all = append(all, r.pattern)
	}
	return all
}

// Hostile is a text as a sprite, an agent or a repository may say it.
const Hostile = hostile
