package config

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// SkillFile is, in a repository, what agents are told before a plan, in place of
// cove's own text.
const SkillFile = Dir + "/skill.md"

// Skill reads the repository's skill; nil: it has none. It is told to a model in a
// sandbox, as the repository's other texts are, and changes nothing else. Errors are
// Problems.
func (p Places) Skill() (*cove.Skill, error) {
	if p.Top == "" {
		return nil, nil
	}
	data, err := readOwn(p.Top, "skill.md", agents.MaxSkill)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, Problems{{File: filepath.Join(p.Top, SkillFile), Message: readError(err)}}
	}
	skill, err := agents.ParseSkill(SkillFile, string(data))
	if err != nil {
		return nil, err
	}
	return &skill, nil
}
