package agents

// A Settled is an Agent that reads settings of a person's: instructions, skills and the
// like, in a folder of the home.
type Settled interface {
	Settings() Settings
}

// Settings say which files of a folder in a person's home may go along with a job. No others
// do.
type Settings struct {
	Folder string   // below the home
	Files  []string // below it; one that ends in / is a folder, with all that is in it

	// Keys has, for a JSON file of Files, the keys that may go along; others are left out. A
	// file without an entry goes along whole.
	Keys map[string][]string
}

// Settings are the person's instructions, skills, commands and subagents. From settings.json
// come only keys that say how the agent works. None of them runs a program of the person's
// machine, or says where the model is or who asks it.
func (Claude) Settings() Settings {
	return Settings{
		Folder: ".claude",
		Files:  []string{"CLAUDE.md", "settings.json", "agents/", "commands/", "output-styles/", "rules/", "skills/"},
		Keys: map[string][]string{"settings.json": {
			"alwaysThinkingEnabled", "attribution", "effortLevel", "includeCoAuthoredBy", "language", "model", "outputStyle", "permissions",
		}},
	}
}
