package gitwork

// OnStep has f called before each step of a fast-forward.
func (r *Repo) OnStep(f func(step string)) { r.step = f }
