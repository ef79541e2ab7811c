package filesync

import (
	"strings"
	"testing"
)

// TestDecide is the three-state table: how a path changed at the source and at the target, and
// the action. S is same, C changed or new, D deleted, "-" absent without a base.
func TestDecide(t *testing.T) {
	states := map[byte]state{'S': same, 'C': changed, 'D': deleted, '-': absent}
	actions := map[string]action{"nothing": actNothing, "adopt": actAdopt, "take": actTake, "delete": actDelete, "merge": actMerge, "forget": actForget,
		"newer": actNewer, "missing": actMissing, "conflict": actConflict, "keep": actKeep, "beside": actBeside}
	for row := range strings.Lines(`
		base SS= adopt
		base SC  newer
		base SD  missing
		base CS  take
		base CC= adopt
		base CC  conflict
		base CC  conflict    push ours=take theirs=keep both=beside
		base CC  conflict    pull ours=keep theirs=take both=beside
		base CCm conflict    push
		base CCm merge       pull ours=merge theirs=merge both=merge
		base CCt conflict    pull theirs=take
		base CD  conflict    push ours=take theirs=keep both=beside
		base CD  conflict    pull ours=keep theirs=take both=beside
		base DS  delete
		base DC  conflict    push ours=delete theirs=keep both=keep
		base DC  conflict    pull ours=keep theirs=delete both=keep
		base DD  forget
		none C-  take
		none -C  nothing
		none CC= adopt
		none CC  conflict    push ours=take theirs=keep both=beside
		none CCt conflict    pull ours=keep theirs=take both=beside
		none --  nothing
	`) {
		fields := strings.Fields(row)
		if len(fields) < 3 {
			continue
		}
		f := facts{base: fields[0] == "base", source: states[fields[1][0]], target: states[fields[1][1]], equal: strings.HasSuffix(fields[1], "="),
			merges: strings.HasSuffix(fields[1], "m"), retyped: strings.HasSuffix(fields[1], "t")}
		f.merges = f.merges || f.retyped // a type that changed never merges
		verbs, policies := []Verb{Push, Pull}, []string{"fail=" + fields[2], "=" + fields[2]}
		if len(fields) > 3 {
			verbs = []Verb{Verb(fields[3])}
			policies = append(policies, fields[4:]...)
		}
		for _, verb := range verbs {
			for _, p := range policies {
				policy, want, _ := strings.Cut(p, "=")
				if got := decide(f, options{verb: verb, policy: Policy(policy)}); got != actions[want] {
					t.Errorf("%s by %s, %q: got %d, want %s", fields[:2], verb, policy, got, want)
				}
			}
		}
	}
}

// TestDecideAll checks rules that hold for all facts.
func TestDecideAll(t *testing.T) {
	each := func(do func(f facts, o options)) {
		for bits := range 16 {
			for _, s := range []state{absent, same, changed, deleted} {
				for _, d := range []state{absent, same, changed, deleted} {
					for _, verb := range []Verb{Push, Pull} {
						for _, policy := range []Policy{Fail, Ours, Theirs, Both} {
							f := facts{base: bits&1 != 0, source: s, target: d, equal: bits&2 != 0, merges: bits&4 != 0}
							do(f, options{verb: verb, policy: policy, reset: bits&8 != 0})
						}
					}
				}
			}
		}
	}
	each(func(f facts, o options) {
		act := decide(f, o)
		if o.reset && act != actTake && act != actDelete && act != actAdopt && act != actForget && act != actNothing {
			t.Errorf("a reset of %+v: %d", f, act)
		}
		if act == actConflict && o.policy != Fail {
			t.Errorf("%+v with %s is a conflict", f, o.policy)
		}
		if o.policy == Fail && !o.reset && f.target == changed && f.base && !f.equal && (act == actTake || act == actDelete) {
			t.Errorf("%+v: a change of the target's is lost", f)
		}
		o.keep = true
		if decide(f, o) == actDelete {
			t.Errorf("%+v is deleted", f)
		}
	})
}
