package job

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// Bounds on what a caller may ask for.
const (
	maxPlan    = 1 << 20
	maxScript  = 4 << 20
	maxText    = 255 // of names
	maxTimeout = 100 * 24 * time.Hour
	maxEnv     = 1000
	maxEnvName = 255
	maxEnvSize = 1 << 20 // of all variables together
	maxShallow = 2000    // commits at which a history is cut off
	maxTurns   = 1 << 20

	maxSettings     = 500 // files
	maxSettingsSize = 2 << 20
	maxPath         = 500
	maxCommand      = 8 << 10
	maxUSD          = 1e6
)

var (
	commitID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`) })
	sha256ID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })
	envName  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`) })
)

// check refuses a request that can't become a job, and finds its agent.
func check(req cove.JobRequest) (agents.Agent, error) {
	agent, err := agentOf(req.Agent, req.Definition)
	if err != nil {
		return nil, err
	}
	if _, ok := agent.(agents.Converser); req.Converse && !ok {
		return nil, fail.Newf("no_input", "leave out --converse", "the agent %s takes no messages", req.Agent)
	}
	if err := checkCommand(agent, req); err != nil {
		return nil, err
	}
	if err := agents.CheckRole(agent, req.Role); err != nil {
		return nil, fail.Newf("bad_request", "use --agent cove, or --role build", "%v", err)
	}
	if req.URL != "" {
		if err := connect.CheckRepository(req.URL); err != nil {
			return nil, fail.Newf("bad_request", "", "%v", err)
		}
	}
	for what, text := range map[string]string{
		"repository's id": req.RepoID, "plan's name": req.PlanName, "repository's name": req.Repository, "author's name": req.Author.Name, "author's address": req.Author.Email,
	} {
		if len(text) > maxText || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return nil, fail.Newf("bad_request", "", "the %s must be at most %d printable characters", what, maxText)
		}
	}
	switch {
	case len(req.Model) > maxText || strings.ContainsFunc(req.Model, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, fail.Newf("bad_request", "write PROVIDER/MODEL", "%.40q can't be a model's name", req.Model)
	case len(req.Plan) > maxPlan:
		return nil, fail.Newf("bad_plan", "shorten it, or put the long part into a file of the repository that the plan names", "the plan has %d bytes; the limit is %d (1 MiB)", len(req.Plan), maxPlan)
	case req.Branch != "" && !branchName(req.Branch):
		return nil, fail.Newf("bad_request", "push from one with another name: git switch -c NAME", "%.80q can't be a branch", req.Branch)
	case req.URL != "" && (req.Base != "" || req.RepoID != ""):
		return nil, fail.Newf("bad_request", "leave out base and repo_id, or url", "a job that clones a URL takes neither a commit nor the repository's id: it begins with the branch as it is there")
	case req.Begin && (req.URL == "" || req.Interactive):
		return nil, fail.Newf("bad_request", "leave out begin: send the bundle, and call POST /v1/jobs/{id}/start", "only a job that clones a URL and is not interactive can begin by itself")
	case req.Publish != "" && !slices.Contains(publishChoices, req.Publish):
		return nil, fail.Newf("bad_request", "", "publish %.40q is not one of %s", req.Publish, publishText())
	case req.Publish != "" && req.URL == "":
		return nil, fail.Newf("bad_request", "leave out publish, or name a URL", "publish needs a URL, and the job has none")
	case req.Issue < 0 || req.Issue > 0 && req.URL == "":
		return nil, fail.New("bad_request", "an issue must be a positive number, and needs a URL", "")
	case req.Depth < 0 || req.Depth > 0 && req.URL == "":
		return nil, fail.Newf("bad_request", "", "a depth must be a number of commits, and needs a URL")
	case req.URL == "" && !commitID().MatchString(req.Base):
		return nil, fail.Newf("bad_request", "", "%.80q is not a commit", req.Base)
	case strings.ContainsAny(req.Author.Name+req.Author.Email, "<>"):
		return nil, fail.Newf("bad_request", "", "an author can't have < or > in the name")
	case req.TimeoutSec < 0 || req.TimeoutSec > int64(maxTimeout/time.Second):
		return nil, fail.Newf("bad_request", "0 means the server's default", "the timeout can't be %d seconds", req.TimeoutSec)
	case cove.CheckStepLimits(req.StepLimits) != nil:
		return nil, fail.Newf("bad_request", "", "%v", cove.CheckStepLimits(req.StepLimits))
	case badGuards(req.Guards):
		return nil, fail.Newf("bad_request", "0 means no such guard", "a guard can't be so large, nor negative")
	case req.Converse && req.Interactive:
		return nil, fail.Newf("bad_request", "choose one of them", "an agent in a terminal takes messages there")
	case req.Interactive && (req.Guards.IdleSec > 0 || req.Guards.Turns > 0):
		return nil, fail.Newf("bad_request", "leave out --max-idle and --max-turns", "these guards don't see what an agent does in a terminal")
	case req.Sprite != "" && (req.Config != nil || len(req.Include) > 0):
		return nil, fail.Newf("bad_request", "leave out --sprite, or these", "a job in the sprite %.40s can't have an image, limits or included folders of its own: it has those of the sprite", req.Sprite)
	case req.Sprite != "" && req.Remove:
		return nil, fail.Newf("bad_request", "leave out --rm, or --sprite", "only a sprite that was made for the job is deleted with it")
	case len(req.Env) > maxEnv:
		return nil, fail.Newf("bad_request", "", "%d environment variables are more than %d", len(req.Env), maxEnv)
	}
	if err := checkScript("setup", req.SetupScript, maxTimeout, "ten minutes"); err != nil {
		return nil, err
	}
	if err := checkScript("cleanup", req.CleanupScript, maxCleanupTime, "a minute"); err != nil {
		return nil, err
	}
	size := 0
	for i, kv := range req.Env {
		name, _, _ := strings.Cut(kv, "=")
		if size += len(kv); len(name) > maxEnvName || size > maxEnvSize {
			return nil, fail.Newf("bad_request", "", "a variable's name can have at most %d characters, and all variables together at most %d bytes", maxEnvName, maxEnvSize)
		}
		if !envName().MatchString(kv) { // it may be a part of a value
			return nil, fail.Newf("bad_request", "write KEY=VALUE", "environment variable %d has no name, or one that can't be one", i+1)
		}
		if strings.ContainsRune(kv, 0) {
			return nil, fail.Newf("bad_request", "", "the value of the environment variable %s has a NUL", name)
		}
	}
	return agent, nil
}

// checkScript refuses a script that can't be run. A nil s is no script.
func checkScript(what string, s *cove.SetupScript, most time.Duration, preset string) error {
	switch {
	case s == nil:
	case s.Text == "" || len(s.Text) > maxScript || strings.ContainsRune(s.Text, 0) || len(s.Name) > maxText || strings.ContainsFunc(s.Name, unicode.IsControl):
		return fail.Newf("bad_request", "", "the %s script must be a text of at most %d bytes, with a name", what, maxScript)
	case s.TimeoutSec < 0 || s.TimeoutSec > int64(most/time.Second):
		return fail.Newf("bad_request", "0 means "+preset, "the %s script's time can't be %d seconds: the limit is %v", what, s.TimeoutSec, most)
	}
	return nil
}

// checkCommand refuses settings of an agent that its command starts, for others, and
// the other way round.
func checkCommand(agent agents.Agent, req cove.JobRequest) error {
	_, asks := agent.(agents.Questioner)
	switch {
	case asks && strings.TrimSpace(req.AgentCommand) == "":
		return fail.Newf("bad_request", `name it: --agent-command "opencode acp"`, "the agent %s needs the command that starts it", req.Agent)
	case !asks && (req.AgentCommand != "" || req.Permissions != ""):
		return fail.Newf("bad_request", "leave out --agent-command and --permissions, or use --agent acp", "the agent %s takes no command, and asks for no permission", req.Agent)
	case len(req.AgentCommand) > maxCommand || strings.ContainsRune(req.AgentCommand, 0):
		return fail.Newf("bad_request", "", "an agent's command must be a line of at most %d bytes", maxCommand)
	case req.Permissions != "" && !slices.Contains(agents.PermissionChoices, req.Permissions):
		return fail.Newf("bad_request", "", "permissions %.40q is not one of %s", req.Permissions, strings.Join(agents.PermissionChoices, ", "))
	}
	return nil
}

func badGuards(g cove.Guards) bool {
	return g.IdleSec < 0 || g.IdleSec > int64(maxTimeout/time.Second) || g.Turns < 0 || g.Turns > maxTurns || g.DiskBytes < 0 || !(g.CostUSD >= 0 && g.CostUSD <= maxUSD)
}

// branchName reports whether git takes name as a branch's.
func branchName(name string) bool {
	if name == "" || len(name) > maxText || name == "@" || name[0] == '-' || name == "HEAD" {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	bad := func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\`, r) }
	return !strings.ContainsFunc(name, bad) && !strings.Contains(name, "..") && !strings.Contains(name, "@{")
}

// checkSkill refuses a text that can't be a skill's, and says which it is.
func checkSkill(given *cove.Skill) (*cove.Skill, error) {
	if given == nil {
		return nil, nil
	}
	skill := *given
	for _, text := range []string{skill.Name, skill.Version} {
		if len(text) > maxText || strings.ContainsFunc(text, unicode.IsControl) {
			return nil, fail.Newf("bad_skill", "", "a skill's name and version can have at most %d printable characters", maxText)
		}
	}
	if strings.TrimSpace(skill.Text) == "" || len(skill.Text) > agents.MaxSkill || !utf8.ValidString(skill.Text) || strings.ContainsRune(skill.Text, 0) {
		return nil, fail.Newf("bad_skill", "", "a skill must be UTF-8 text of at most %d bytes", agents.MaxSkill)
	}
	skill.SHA256 = agents.SkillDigest(skill.Text)
	return &skill, nil
}

// checkSettings refuses files that don't belong below a home.
func checkSettings(files []cove.SettingsFile) error {
	size := 0
	for _, f := range files {
		size += len(f.Text)
		if !fs.ValidPath(f.Path) || f.Path[0] != '.' || f.Path == "." || len(f.Path) > maxPath || strings.ContainsFunc(f.Path, unicode.IsControl) || !strings.Contains(f.Path, "/") {
			return fail.Newf("bad_request", "", "%.80q can't be a file of settings: it must be in a folder of the home folder whose name begins with a dot", f.Path)
		}
	}
	if len(files) > maxSettings || size > maxSettingsSize {
		return fail.Newf("bad_request", "", "settings can be at most %d files, with %d bytes", maxSettings, maxSettingsSize)
	}
	return nil
}
