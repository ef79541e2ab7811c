package filesync

// unheld hands on the entries of a manifest without the folders whose whole content is held:
// these would come as empty folders. A folder that is empty in the sprite comes. A folder that
// is here already is handed on, because it would look deleted otherwise.
type unheld struct {
	add  func(Entry) error
	here func(name string) bool

	open []begunFolder // each in the one before
}

// begunFolder is a folder whose end has not come yet.
type begunFolder struct {
	entry Entry
	added bool // it was handed on
	held  bool // something in it was held
}

// folder takes a folder, which comes before its content.
func (u *unheld) folder(e Entry) error {
	if err := u.leave(e.Path); err != nil {
		return err
	}
	u.open = append(u.open, begunFolder{entry: e})
	return nil
}

// file takes an entry that is not a folder.
func (u *unheld) file(e Entry) error {
	if err := u.leave(e.Path); err != nil {
		return err
	}
	if err := u.hand(); err != nil {
		return err
	}
	return u.add(e)
}

// hold takes the name of a held entry.
func (u *unheld) hold(name string) error {
	if err := u.leave(name); err != nil {
		return err
	}
	if n := len(u.open); n > 0 {
		u.open[n-1].held = true
	}
	return nil
}

// leave ends the folders that name is not in.
func (u *unheld) leave(name string) error {
	for n := len(u.open); n > 0 && !below(name, u.open[n-1].entry.Path); n-- {
		if err := u.leaveLast(); err != nil {
			return err
		}
	}
	return nil
}

// end ends all folders.
func (u *unheld) end() error {
	for len(u.open) > 0 {
		if err := u.leaveLast(); err != nil {
			return err
		}
	}
	return nil
}

func (u *unheld) leaveLast() error {
	n := len(u.open)
	last := u.open[n-1]
	if !last.added && last.held && !u.here(last.entry.Path) {
		if u.open = u.open[:n-1]; n > 1 {
			u.open[n-2].held = true
		}
		return nil
	}
	err := u.hand()
	u.open = u.open[:n-1]
	return err
}

// hand hands on the open folders that were not handed on yet.
func (u *unheld) hand() error {
	for i := range u.open {
		if !u.open[i].added {
			u.open[i].added = true
			if err := u.add(u.open[i].entry); err != nil {
				return err
			}
		}
	}
	return nil
}
