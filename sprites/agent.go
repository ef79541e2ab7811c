package sprites

// AgentDefinition is an agent that a file defines, as it goes along with a job: the
// server knows no files of the person's.
type AgentDefinition struct {
	File string `json:"file"` // for people
	Text string `json:"text"` // TOML
}

// Skill is the text that makes an agent carry a plan out alone.
type Skill struct {
	Name    string `json:"name"` // for people: where it is from
	Version string `json:"version,omitempty"`
	SHA256  string `json:"sha256"`
	Text    string `json:"text,omitempty"` // empty in a Job: the digest says which it was
}
