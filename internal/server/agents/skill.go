package agents

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove"
)

// MaxSkill bounds a skill's text, in bytes.
const MaxSkill = 64 << 10

//go:embed skills/plan.md
var planSkill string

//go:embed skills/converse.md
var converseSkill string

//go:embed skills/ask.md
var askSkill string

// builtInSkill is the name of the skill that is there without any file.
const builtInSkill = "plan"

// ParseSkill reads a skill: a text, above which a block between two lines --- may give its
// version. A skill is only text for a model. Anything else in that block is an error, so that
// no skill looks as if it gave permissions. name is for people. Errors are Problems.
func ParseSkill(name, text string) (cove.Skill, error) {
	skill := cove.Skill{Name: name, Text: text}
	fail := func(line int, format string, args ...any) (cove.Skill, error) {
		return cove.Skill{}, Problems{{File: name, Line: line, Message: fmt.Sprintf(format, args...)}}
	}
	if len(text) > MaxSkill {
		return fail(1, "a skill of %d bytes is more than %d", len(text), MaxSkill)
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return fail(1, "a skill is UTF-8 text")
	}
	if rest, ok := strings.CutPrefix(strings.ReplaceAll(text, "\r\n", "\n"), "---\n"); ok {
		head, body, ok := strings.Cut("\n"+rest, "\n---\n")
		if !ok {
			return fail(1, "the block that begins with --- does not end with such a line")
		}
		skill.Text = body
		for i, line := range strings.Split(strings.TrimPrefix(head, "\n"), "\n") {
			key, value, ok := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch {
			case strings.TrimSpace(line) == "":
			case !ok || strings.TrimSpace(key) != "version":
				return fail(i+2, "%.40q: only the version can be there: a skill is text, and gives no permissions", line)
			case value == "" || len(value) > 40 || strings.ContainsFunc(value, unicode.IsControl):
				return fail(i+2, "%.50q is not a version", value)
			default:
				skill.Version = value
			}
		}
	}
	if strings.TrimSpace(skill.Text) == "" {
		return fail(1, "the skill is empty")
	}
	skill.SHA256 = SkillDigest(skill.Text)
	return skill, nil
}

// SkillDigest is the digest of a skill's text. A job names its skill by the digest.
func SkillDigest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// DefaultSkill makes an agent carry a plan out alone: nobody answers its questions, it
// commits as it goes, and says what it left.
func DefaultSkill() cove.Skill { return mustSkill(builtInSkill, planSkill) }

// ReadsSkill reports whether the agent of that name is told a skill. The agent shell is not.
func ReadsSkill(name string) bool { return name != Shell{}.Name() }

// mustSkill is a skill that is built in.
func mustSkill(name, text string) cove.Skill {
	skill, err := ParseSkill(name, text)
	if err != nil {
		panic(err) // its test parses it
	}
	return skill
}

// instructions are what the agent is told before the plan.
func (t Task) instructions() string {
	text := DefaultSkill().Text
	if t.Skill != nil {
		text = t.Skill.Text
	}
	if t.Permissions == PermissionAsk {
		text += mustSkill("ask", askSkill).Text
	}
	return text
}
