package tools

import (
	"fmt"
	"slices"
	"strings"
)

// A Role is the set of tools that may be called. The zero value allows none.
type Role struct {
	name    string
	allowed []string
}

// The roles that have names.
const (
	ReadOnly = "read-only" // Read, Glob, Grep: nothing that writes or runs anything
	EditOnly = "edit"      // and Write and Edit
	Full     = "full"      // and Bash
)

// RoleNames are the roles that have names, the least first.
var RoleNames = []string{ReadOnly, EditOnly, Full}

var roles = map[string][]string{
	ReadOnly: {"Glob", "Grep", "Read"},
	EditOnly: {"Edit", "Glob", "Grep", "Read", "Write"},
	Full:     {"Bash", "Edit", "Glob", "Grep", "Read", "Write"},
}

// ParseRole returns the role that allows what all given roles allow. Each is a name, or tools
// with commas between them; more roles only narrow it. No role at all allows nothing. An
// unknown role allows nothing either, and is an error.
func ParseRole(texts ...string) (Role, error) {
	role := Role{name: strings.Join(texts, " and ")}
	for i, text := range texts {
		allowed, err := parseOne(text)
		if err != nil {
			return Role{name: role.name}, err
		}
		if i == 0 {
			role.allowed = allowed
			continue
		}
		role.allowed = slices.DeleteFunc(role.allowed, func(tool string) bool { return !slices.Contains(allowed, tool) })
	}
	return role, nil
}

func parseOne(text string) ([]string, error) {
	if allowed, ok := roles[text]; ok {
		return slices.Clone(allowed), nil
	}
	list := strings.Split(text, ",")
	for _, tool := range list {
		if !slices.Contains(roles[Full], tool) {
			return nil, fmt.Errorf("the role %q is unknown, and allows nothing: it is %s, or a list of tools such as Read,Grep",
				text, strings.Join(RoleNames, ", "))
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// Allows reports whether a tool may be called.
func (r Role) Allows(tool string) bool { return slices.Contains(r.allowed, tool) }

// Tools are the names of the tools that may be called, sorted.
func (r Role) Tools() []string { return slices.Clone(r.allowed) }

// String is the role as it was given.
func (r Role) String() string { return r.name }

// refuse is the error of a call that the role does not allow; nil: it does.
func (r Role) refuse(tool string) error {
	switch {
	case r.Allows(tool):
		return nil
	case len(r.allowed) == 0:
		return errorf(CodeDenied, "the role %q allows no tool at all", r.name)
	case !slices.Contains(roles[Full], tool):
		return errorf(CodeDenied, "there is no tool %q; there are %s", tool, strings.Join(r.allowed, ", "))
	}
	return errorf(CodeDenied, "the role %q does not allow %s, but only %s", r.name, tool, strings.Join(r.allowed, ", "))
}
