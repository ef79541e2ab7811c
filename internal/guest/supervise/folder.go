package supervise

import (
	"os"
	"path/filepath"
)

// folder is the path of a job's folder.
type folder string

// file is the path of a file in the folder.
func (f folder) file(name string) string { return filepath.Join(string(f), name) }

// mark is a variable (KEY=VALUE) in the environment of each of the job's processes.
func (f folder) mark() string { return "COVE_JOB=" + string(f) }

// environ is the environment of the job's processes.
func (f folder) environ() []string { return append(os.Environ(), f.mark()) }
