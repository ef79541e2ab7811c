package server

// RouteVerbs are the server's routes, by their pattern, with the verb that each needs.
func RouteVerbs() map[string]string {
	verbs := map[string]string{}
	for _, r := range (&groups{}).routes() {
		verbs[r.pattern] = r.verb
	}
	return verbs
}
