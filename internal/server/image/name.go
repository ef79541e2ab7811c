package image

// CheckName refuses what can't be the name of an image that is made here.
func CheckName(text string) error {
	_, err := newName(text)
	return err
}
