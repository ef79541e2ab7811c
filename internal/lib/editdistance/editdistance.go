// Package editdistance tells how alike two names are, for "did you mean".
package editdistance

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
