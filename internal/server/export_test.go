package server

// RouteVerbs are the server's routes, by their pattern, with the verb that each needs.
func RouteVerbs() map[string]string {
	verbs := map[string]string{}
	for _, r := range (&groups{}).routes() {
		verbs[r.pattern] = r.verb
	}
	return verbs
}

// SocketMethods are the methods of a socket, with the routes that they are.
func SocketMethods() map[string]string {
	all := map[string]string{}
	for name, m := range methods {
		all[name] = m.pattern
	}
	return all
}
