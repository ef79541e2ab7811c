// Package editdistance tells how alike two names are, for "did you mean".
package editdistance

import "strings"

// far is the least distance of another word.
const far = 3

// Nearest is the index of the name that was most likely meant, and how far it is from what was given: at
// most two changes, or two if it begins with what was given. Small and capital letters are alike; the
// names are in small ones. The index is -1 if there is none; of names that are as near, the first counts.
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

// longest is the length, in bytes, of the longest text that is looked at: names are no longer.
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
