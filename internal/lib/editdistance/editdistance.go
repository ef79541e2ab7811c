// Package editdistance tells how alike two names are, for "did you mean".
package editdistance

import "strings"

// far is the least distance of another word.
const far = 3

// Nearest returns the index of the name that was most likely meant, and its distance from the given text. A
// name is near if it is at most two changes away; one that begins with the given text (three bytes or more)
// counts as two at most. Case is ignored; names must be in lower case. The index is -1 if no name is near; of
// equally near names, the first counts.
func Nearest(given string, names []string) (index, distance int) {
	given = strings.ToLower(given)
	index, distance = -1, far
	for i, name := range names {
		d := Of(given, name)
		if len(given) >= far && strings.HasPrefix(name, given) {
			d = min(d, far-1)
		}
		if d < distance {
			index, distance = i, d
		}
	}
	return index, distance
}

// longest is the length, in bytes, of the longest text that is looked at. No name is longer.
const longest = 255

// Of is how many bytes must be put in, taken out or changed to make b of a. If one of them has
// more than 255 bytes, it is the length of the longer one.
func Of(a, b string) int {
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}
