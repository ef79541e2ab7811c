// Package sprite is the life of a sprite: it is made, wakes when it is used,
// sleeps when it is not, and is deleted. What a sandbox is made of is a Runtime's
// business.
package sprite
