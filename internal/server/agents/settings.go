package agents

// A Settled is an Agent that reads settings of a person's: instructions, skills and the
// like, in a folder of the home.
type Settled interface {
	Settings() Settings
}

// Settings say what of a folder of a person's home may go along with a job. What is not
// named does not.
type Settings struct {
	Folder string   // below the home
	Files  []string // below it; one that ends in / is a folder, with all that is in it

	// Keys are, for a file of JSON among Files, those that may go along; others are
	// left out of it. Without an entry all of a file goes along.
	Keys map[string][]string
}

// Settings are the person's instructions, skills, commands and subagents. Of
// settings.json goes along what says how it works: nothing that runs a program of the
// person's machine, nor what says where the model is and who asks.
func (Claude) Settings() Settings {
	return Settings{
		Folder: ".claude",
		Files:  []string{"CLAUDE.md", "settings.json", "agents/", "commands/", "output-styles/", "rules/", "skills/"},
		Keys: map[string][]string{"settings.json": {
			"alwaysThinkingEnabled", "attribution", "effortLevel", "includeCoAuthoredBy", "language", "model", "outputStyle", "permissions",
		}},
	}
}
