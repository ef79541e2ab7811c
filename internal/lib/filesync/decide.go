package filesync

// Policy says how conflicts are resolved.
type Policy string

// The policies. Ours is this machine and theirs is the sprite, in either direction.
const (
	Fail   Policy = "fail"   // nothing at all is done
	Ours   Policy = "ours"   // this machine's version stays, or is pushed
	Theirs Policy = "theirs" // the sprite's version stays, or is pulled
	Both   Policy = "both"   // the target's version stays; the other is put beside it
)

// Verb is the direction of a sync.
type Verb string

// The directions.
const (
	Push Verb = "push" // this machine is the source, the sprite the target
	Pull Verb = "pull"
)

// state says how a path has changed at one end since the last sync.
type state byte

const (
	absent  state = iota // it is not there, and was not
	same                 // it is what it was
	changed              // it is not, or it is new
	deleted
)

// facts are what is known of a path.
type facts struct {
	base           bool // the last sync left it at both ends
	source, target state
	equal          bool // both ends have the same there
	retyped        bool // file, folder or link at one end, and another of them at the other end, or before
	merges         bool // the two texts merge by what they were before
}

// action is what is done about a path.
type action byte

const (
	actNothing  action = iota // it was not touched, or there is nothing to do
	actAdopt                  // both ends have it: it is the new base
	actTake                   // the source's version goes to the target
	actDelete                 // it is deleted at the target
	actMerge                  // a merge of both goes to the target
	actForget                 // it is gone at both ends
	actNewer                  // the target has changed it, the source has not: left, and reported
	actMissing                // the target has deleted it, the source has not: left, and reported
	actConflict               // refused
	actKeep                   // a conflict for the target's version: it stays, and the source's counts as seen
	actBeside                 // the same, and the source's version is put beside it
)

// options are what the caller wants.
type options struct {
	verb   Verb
	policy Policy
	reset  bool // the target becomes what the source is
	keep   bool // nothing is deleted
}

// decide is the whole three-way comparison. It returns the action for a path.
func decide(f facts, o options) action {
	act := compare(f, o)
	if act == actDelete && o.keep {
		return actNothing
	}
	return act
}

func compare(f facts, o options) action {
	here := func(s state) bool { return s == same || s == changed }
	switch {
	case !here(f.source) && !here(f.target):
		if f.base {
			return actForget
		}
		return actNothing
	case here(f.source) && here(f.target) && f.equal:
		return actAdopt
	case o.reset && here(f.source):
		return actTake
	case o.reset:
		return actDelete
	case !f.base && !here(f.source): // only ever at the target
		return actNothing
	case !f.base && !here(f.target):
		return actTake
	case f.source == same && f.target == deleted:
		return actMissing
	case f.source == same:
		return actNewer
	case f.target == same && f.source == deleted:
		return actDelete
	case f.target == same:
		return actTake
	}
	return resolve(f, o)
}

// resolve decides on a path that both ends have changed.
func resolve(f facts, o options) action {
	if f.merges && !f.retyped && o.verb == Pull && f.source == changed && f.target == changed {
		return actMerge
	}
	wins := Theirs // the policy by which the source does
	if o.verb == Push {
		wins = Ours
	}
	switch {
	case o.policy == Fail || o.policy == "":
		return actConflict
	case o.policy == Both && f.source == deleted:
		return actKeep
	case o.policy == Both:
		return actBeside
	case o.policy != wins:
		return actKeep
	case f.source == deleted:
		return actDelete
	}
	return actTake
}
