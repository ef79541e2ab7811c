package config

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// SkillFile is the file of a repository that agents are told before a plan, in place of
// cove's own text.
const SkillFile = Dir + "/skill.md"

// Skill reads the repository's skill; nil: it has none. A model in a sandbox is told the
// skill, like the repository's other texts, and nothing else depends on it. Errors are
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
