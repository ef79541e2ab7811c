package cli

import (
	"fmt"
	"io"
	"slices"
)

// A topic is a page of cove help about more than one command, or too long for one.
type topic struct {
	Name  string // one word, which no command has
	Short string
	Long  string
}

// topics are all of them, sorted by name.
var topics = []topic{
	{
		Name:  "agent-file",
		Short: "The TOML file that defines an agent",
		Long: `An agent of your own is defined by a TOML file; cove agent add takes it:

  name = "greeter"                                 the name for --agent
  description = "greets the people that the plan names"
  version = "1.4.0"                                the version that install brings
  argv = ["greeter", "run", "--plan", "{prompt_file}"]
  resume = ["greeter", "resume", "{session}", "{prompt_file}"]   for cove job resume
  interactive = ["greeter", "{prompt_file}"]       for --interactive; without it, nobody can join
  stdin = "none"                                   or: prompt
  install = [["npm", "install", "-g", "--prefix", "{home}/.local", "greeter@1.4.0"]]
  setup = [["sh", "-c", "cp {files}/config.json ~/.greeter.json"]]
  verify = ["greeter", "--version"]                succeeds if the agent is there
  connectors = ["anthropic"]                       its jobs are granted these
  keys = ["ANTHROPIC_API_KEY"]                     without connectors it needs one of these
  env = { ANTHROPIC_BASE_URL = "http://anthropic.connect.internal" }
  files = { "config.json" = '''{"colour": true}''' }
  needs = { disk = "200M", memory = "1G" }
  turn = { stream = "stdout", match = { type = "assistant" }, once = "message.id" }

  [events]                                         format none: the exit code decides
  format = "jsonl"                                 each line of JSON is an event
  stream = "stdout"                                or stderr, or events: file descriptor 3
  ok = { match = { type = "done" }, text = "summary" }
  failed = { match = { type = "error" }, text = "error.message" }
  usage = { match = { type = "usage" }, input_tokens = "in", output_tokens = "out",
            cost_usd = "cost", turns = "turns" }
  session = { match = { type = "start" }, id = "session_id" }    cove job resume continues it
  [[events.rules]]                                 the first rule that matches counts
  match = { type = "tool" }
  kind = "tool_start"                              or start, text, step, step_end, tool_end,
  tool = "name"                                    retry, denied
  text = "input.command"
  failed = "is_error"

match compares its values with those at dotted paths of the line (at most 1 MiB). A job
succeeds if the last line that matched ok or failed was ok, and the exit code was 0. If a job
has no connectors, variables with the URL of a connector are left out.

install runs if the agent may be missing, and may serve many sprites. setup runs before each
job. The words in braces:

  {prompt_file}   the text for the agent: skill and plan
  {files}         the folder with files
  {workdir}       the clone
  {home}          the home of the sprite's user
  {session}       a UUID of the job; in resume, the agent's own name of its session`,
	},
	{
		Name:  "connector-rules",
		Short: "The paths and the limits of a connector",
		Long: `A connector lets a request pass if its path matches one of --paths and none of --deny-paths;
* matches anything. An upstream may accept spellings of a path that cove does not know. So
--paths is a safe barrier, and --deny-paths is not.

Each sprite has the limits of --limit for itself:

  N                        requests in all
  N/minute                 requests
  SIZE/day                 bytes, both ways together
  Ntokens/day, Nusd/day    for models

Dollars need prices per million tokens: --price 'MODEL=INPUT/OUTPUT'. The first one whose
pattern has the model counts.

cove counts the tokens that the answers report. An answer that is cut off, or reports none,
counts one token for four bytes. Requests under way may finish after a limit is reached. With a
limit on tokens or dollars, at most 8 requests are under way at once.`,
	},
	{
		Name:  "held-files",
		Short: "The files that cove pull holds, and the folders that it brings",
		Long: `If a job changes a file that could run code on this machine, cove moves nothing. It lists these
files and holds them for your review (exit code 4):

  - settings of agents, editors and shells
  - CI, git hooks, and files that your git already runs
  - new dot-files

Look at them with cove job diff JOB, and take them with --accept-risky. On a terminal, cove asks
you. Files that run when you build or test, such as a Makefile, are listed and not held. With
pull.risky = "list", in your own settings file only, all are listed and taken.

cove pull also brings the folders that your settings name as [[pull.sync]] (see cove help
settings), if the job succeeded. Files of the kinds above are left out. If both sides have
changed a file there, that is a conflict, as in cove sync. Then nothing of that folder is brought
(exit code 3), and the sprite is kept. The commits and the other folders are here.`,
	},
	{
		Name:  "limits",
		Short: "The limits of jobs and of sprites",
		Long: `These limits stop a runaway job. Its work so far is still collected.

  --timeout     running time. The time that the sprite sleeps, or that the job waits for a
                person, does not count
  --max-idle    time in which the agent prints nothing
  --max-turns   turns of the agent's model; for the agent shell, steps of the plan. push refuses
                it for an agent that does not report its turns (codex, gemini, acp)
  --max-disk    growth of the files in the home, /tmp and /var/tmp
  --max-cost    dollars, at the prices of the model's connector; for the agent cove alone
  --step-limit  time of one step of the preparation

These limits are the sprite's (see cove update):

  --memory      memory
  --cpus        processors
  --disk        disk space of the server's machine, with the sprite's checkpoints and the
                disk that it was forked from. At the limit the sprite is paused, until you
                raise the limit or delete checkpoints

cove watches the disk instead of checking each write: a program may write more in the fraction
of a second before the pause. A checkpoint copies files that are open for writing (see cove
doctor). At the limit, no checkpoint is made of a sprite that is awake.`,
	},
	{
		Name:  "mcp-servers",
		Short: "MCP servers for the agent of a job",
		Long: `--mcp sprite:NAME=COMMAND gives the agents claude, codex, opencode, acp and cove an MCP server
that they start in the sprite. COMMAND is a command line for sh. --mcp-env NAME:KEY=VALUE gives
that server a variable.

--mcp host:NAME=TOOL,TOOL lets the agent cove call tools of an MCP server outside of the
sprite: only the tools that you name. * stands for all. NAME is a connector, which adds the
key and keeps a log of the requests:

  cove secret set linear
  cove connector put linear --upstream URL --header "Authorization: Bearer {secret}"

--role does not limit the tools of --mcp.`,
	},
	{
		Name:  "models",
		Short: "The agents of a job, and the models that they ask",
		Long: `--agent chooses the agent of a job:

  shell                          runs the plan's fenced sh blocks in order. It commits after
                                 each, with the heading above the block as the message
  claude                         Claude Code
  codex, gemini, opencode, pi    the programs of these names
  cove                           cove's own
  acp                            any agent that speaks the Agent Client Protocol.
                                 --agent-command starts it in the sprite

cove agent list shows all agents, and cove agent add takes others.

The key of an agent's model stays outside of the sprite: cove secret set anthropic (for codex
openai, for gemini gemini). --model PROVIDER/MODEL overrides the model; cove, opencode and pi
accept the providers anthropic, openai and gemini. Without --model, cove uses the first of these
that has a secret.

cove grants the requests for permission of the agent acp, because the sandbox is the boundary.
--permissions deny refuses them. With --permissions ask the job waits for you (cove job
answer), and that time does not count.

With --role plan or review the agent cove only reads: calls of other tools are refused in the
sprite. Such a job commits nothing, and cove job logs has its answer. cove refuses --role for
other agents, because their tools are their own.

With --converse an agent that can (claude) waits for messages after its answer (cove job send).`,
	},
	{
		Name:  "network",
		Short: "The addresses that a sprite may reach",
		Long: `A sprite without rules reaches every public address, by TCP. With rules, it reaches only what
they allow. The most specific rule decides; their order does not matter. A rule for a name allows
an address only if the sprite has looked up that name. The TLS handshake or the plain HTTP
request must also name it. A rule for an address needs no name.

A sprite reaches these addresses only if a rule names them:

  - private, link-local and metadata addresses
  - this machine's own addresses
  - this machine's neighbours (all that it reaches without a gateway, by IPv4 or IPv6) and
    its gateways. Machines behind a default route are no neighbours. Those behind a VPN are none
    either, except in the network of the VPN interface's own address.

A rule for a prefix names the addresses in it, if the prefix is inside such a range, such as
10.1.0.0/16. An address of this machine's own needs a rule for exactly that address. Only a
token with the verb admin may set such rules; others may keep or remove them.

This machine may have a route for only one of IPv4 and IPv6. A name with addresses of both kinds
is then answered with those of that kind.

A job's sprite has the rules of --network: a preset (see cove help policy). With the presets
agent and defaults it also reaches the hosts of the repository's remotes, if they have names. A
sprite that was there before keeps its own rules unless you give --network. --allow adds a rule
before the job starts, as for a registry at a private address, which no preset allows.`,
	},
	{
		Name:  "old-data",
		Short: "A server on a data folder that was put back from a copy",
		Long: `If an older cove.db was put back, the server refuses to start. With --accept-older-store it
starts, and then:

  - it moves layers and memories that cove.db does not know to aside/ in the data folder, and
    removes none
  - it ends sandboxes that cove.db does not know, and moves their memory there, too
  - it logs out all browsers
  - tokens that were removed since that cove.db was copied may be valid again: see cove token
    list

If the data folder has lost secret.key, the server refuses to start, too. With --forget-sealed it
deletes all that this key has sealed: secrets, the tokens of backends, and the settings that
jobs could be retried with.`,
	},
	{
		Name:  "preparation",
		Short: "What is done before the agent of a job begins",
		Long: `If new sprites do not have the agent yet, cove installs it first, once for all later jobs. push
prints the job's id before the installation.

.cove/setup.sh, or the script of --setup, runs in the clone before the agent. cove runs it again in
the same sprite only if it failed or has changed. The agent gets the variables of .cove/sandbox.env
(see cove help env) and of --env. In these, {secret:NAME} stands for a secret of the server.

With --agent-settings your own settings for the agent go along: for claude CLAUDE.md, skills,
commands and the like in ~/.claude. cove sends only files that it knows. It leaves out links,
files named like those that hold credentials, and files with text that looks like a key. push
lists the files that it sends and leaves out.

On a terminal, or with --steps, push shows the steps until the agent begins. cove job steps
shows them at any time.`,
	},
	{
		Name:  "profile-file",
		Short: "The TOML file that defines a profile",
		Long: `A profile is written as TOML. cove profile keys lists all keys, and cove profile show prints a
profile so:

  description = "Repairs what the nightly tests find"
  agent = "claude"
  timeout_seconds = 7200
  step_limits = { setup_script = 1800 }
  max_jobs = 10
  include = ["/opt/tools"]

  [config]
  image = "team:1"
  ram_mb = 4096

  [network_policy]
  rules = [{ include = "agent" }, { domain = "registry.example.org", action = "allow" }]

  [env]
  CI = "1"

  [setup_script]
  name = "setup"
  text = "make deps"

  [cleanup_script]
  name = "cleanup"
  text = "make logout"
  timeout_seconds = 30

  [author]
  name = "Robot"
  email = "robot@example.org"`,
	},
	{
		Name:  "repositories",
		Short: "The repository that a job works on",
		Long: `cove push sends the checked-out branch: its commits, those of submodules that are checked out,
and the content of Git LFS. The plan goes as text, so it need not be committed. If there are
other uncommitted changes, choose:

  --dirty include   sends them in a snapshot commit, and leaves your index as it is
  --dirty ignore    sends only what is committed

With --repo URL the sprite clones that repository instead: its default branch, or that of
--branch. Nothing of yours is sent, and you need not be in a repository. A connector for git adds
the credentials, and lets the job only read:

  cove secret set NAME
  cove connector put NAME --upstream https://HOST --git --header "Authorization: Basic {basic:USER}"

--issue adds an issue's title and text to the plan. With --publish, a job that succeeds pushes its
commits to the branch cove/JOB, and may open a pull request. To pull such a job, be in a clone of
that repository.

For --repo the token needs the verb admin, or a profile that names the repository.`,
	},
	{
		Name:  "settings",
		Short: "The settings of cove's files, one by one",
		Long: keyTable() + `
Each has an environment variable, such as COVE_AGENT and COVE_PULL_AUTO. cove config show prints
the values, the built-in ones too.

A repository may come from a stranger. Its file can't set:

  - include, role, profile, backend, [backends], [[pull.sync]] and pull.risky
  - dirty to include, or pull.auto and push.auto_pull to true
  - a setup script outside of .cove
  - a network that reaches further than yours: cove does not use it, and says so

A backend is a server, by a name for --backend (see cove backend --help):

  [backends.team]
  url = "https://cove.example.org"
  token_file = "~/.config/cove/team.token"     or: token_command = ["pass", "cove/team"]

pull, run and job wait also bring folders of a job's sprite, once the job has succeeded. from is
in the job's clone, or absolute; to is below the top of your work tree. Patterns are those of
.gitignore. If there is an include, no other files come. repository names the work tree that the
entry is for; without it, the entry is for all.

  [[pull.sync]]
  from = "dist"
  to = "build/dist"
  include = ["*.whl"]                          also: exclude
  repository = "~/src/app"`,
	},
	{
		Name:  "sync-rules",
		Short: "The files that cove sync moves, and its conflicts",
		Long:  syncTopic,
	},
}

// findTopic returns the topic of that name, or nil.
func findTopic(name string) *topic {
	i := slices.IndexFunc(topics, func(t topic) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &topics[i]
}

// listTopics writes a line for each topic, after the help of cove itself.
func listTopics(w io.Writer) {
	fmt.Fprintln(w, "\nHelp topics:")
	for _, t := range topics {
		fmt.Fprintf(w, "  %-17s %s\n", t.Name, t.Short)
	}
	fmt.Fprintln(w, "\nUse \"cove help TOPIC\" to read about one of them.")
}
