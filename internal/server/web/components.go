package web

// component is one state of a component, as /web/components shows it.
type component struct {
	Name  string // of the template
	State string
	Data  any
}

// shown are the components in all of their states. TestComponents fails if a template of
// templates/components is missing.
func shown() []component {
	return []component{
		{"error", "with a hint", problem{Status: 409, Code: "in_use", Title: "Conflict", Message: "the sprite paint is in use", Hint: "cove job stop 0a1b2c"}},
		{"error", "without one", problem{Status: 500, Code: "internal", Title: "Internal Server Error", Message: "the disk is full"}},
		{"empty", "nothing there", dictOf("Text", "No job has begun yet.", "Command", "cove push plan.md")},
		{"copy", "a command", "cove pull 0a1b2c"},

		// Of lists.

		// Of one job.

		// Of one sprite.

		// Of a new job.

		// Of settings.
	}
}

func dictOf(pairs ...any) map[string]any {
	m, err := dict(pairs...)
	if err != nil {
		panic(err) // the arguments are in this package
	}
	return m
}

// components shows each component as it is in a page, for who builds pages.
func components(v *view) error {
	type rendered struct {
		component
		Body any
	}
	all := make([]rendered, 0, len(shown()))
	for _, c := range shown() {
		body, err := markup(c.Name, c.Data)
		if err != nil {
			return err
		}
		all = append(all, rendered{c, body})
	}
	return v.page("Components", "", "components", all)
}
