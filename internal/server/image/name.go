package image

// CheckName refuses what can't be the name of an image that is made here.
func CheckName(text string) error {
	_, err := newName(text)
	return err
}

// CheckReference refuses what can be neither the name of an image, nor its digest, nor the
// beginning of that.
func CheckReference(text string) error {
	if _, ok := digitsOf(text); ok {
		return nil
	}
	_, err := parse(text)
	return err
}
