package mcpserver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/tools"
)

// A Role is the set of tools that a client may call. The zero value allows none.
type Role struct {
	name    string
	allowed []string
}

// RoleNames are the names of roles, the least first: those of the package tools.
var RoleNames = tools.RoleNames

// Full is the role that allows everything.
const Full = tools.Full

// ParseRole returns the role that allows only what all of the texts allow. A text is a name,
// or tools with commas between them. Without texts, the role allows nothing. If a text is
// unknown, the role allows nothing, and that is an error.
func ParseRole(texts ...string) (Role, error) {
	role := Role{name: strings.Join(texts, " and ")}
	for i, text := range texts {
		allowed, err := parseOne(text)
		if err != nil {
			return Role{name: role.name}, err
		}
		if i > 0 {
			allowed = slices.DeleteFunc(allowed, func(name string) bool { return !slices.Contains(role.allowed, name) })
		}
		role.allowed = allowed
	}
	return role, nil
}

func parseOne(text string) (allowed []string, err error) {
	if slices.Contains(RoleNames, text) {
		for _, t := range all() {
			if slices.Contains(t.roles, text) {
				allowed = append(allowed, t.name)
			}
		}
		return allowed, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if !slices.ContainsFunc(all(), func(t *tool) bool { return t.name == name }) {
			return nil, fmt.Errorf("the role %q is unknown, and allows nothing: it is %s, or a list of tools such as Read,Grep,list",
				text, strings.Join(RoleNames, ", "))
		}
		allowed = append(allowed, name)
		if name == "Bash" { // which can do the same
			allowed = append(allowed, "exec")
		}
	}
	return allowed, nil
}

// Allows reports whether a tool may be called.
func (r Role) Allows(name string) bool { return slices.Contains(r.allowed, name) }

// Tools are the names of the tools that may be called, sorted.
func (r Role) Tools() []string { return slices.Compact(slices.Sorted(slices.Values(r.allowed))) }

// String is the role as it was given.
func (r Role) String() string { return r.name }

// inside is the role that the tools in a sprite get.
func (r Role) inside() string {
	var names []string
	for _, name := range r.Tools() {
		if name == "exec" {
			name = "Bash"
		}
		if isFileTool(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}
