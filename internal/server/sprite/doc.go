// Package sprite is the life of a sprite: it is made, wakes when it is used, sleeps
// when it is not, and is deleted. A Runtime knows how to make a sandbox.
//
// Host is the API, and makes the rooms behind it. Each room is a type (its files are in
// parentheses if they have another name). No room knows Host, and each knows only rooms above it
// in this table. If one must call a room below, Host gives it a function (furnish, in host.go).
//
//	tasks        what goes on in the background, and ends before Close returns
//	rows         the sprites in the store, and notes of what has happened to them
//	machines     the map of the sprites that have been used; places counts those awake
//	machine      one sprite's life in memory: its sandbox, who uses it, its transition
//	layerKeeper  the layers of all disks: pins, lists, merges, removes (layers, reads, listing)
//	memories     the memories of sprites that sleep, and of checkpoints
//	checkpoints  what the store has of them: which there are, what they take, which go (retention)
//	settler      which layer a sprite writes, if a change of that was cut off
//	sealer       seals the layer that a sprite writes
//	limiter      limits of memory and processors (limits)
//	network      policies (policy) and connectors: what they say, and telling sandboxes
//	diskWatch    limits (disk) and the reserve: who is held; diskRoom: what imports claim (room)
//	booter       starts a sandbox from what the store says (boot)
//	lifecycle    the transitions of machines (lifecycle, idle, pause, stop, delete, alone)
//	pool         sandboxes that are ready before anybody asks
//	takeover     what a start does with what an earlier server has left (takeup, aside)
//
// # Transitions
//
// While a sandbox starts, ends, is paused or resumed, and while its disk changes, its machine
// is busy with a transition. No other transition begins meanwhile. A method of the machine
// begins the transition and tells the caller which one it is (step). The lifecycle does it in
// the background, without any lock, and a method of the machine ends it. If a machine is
// busy, callers wait for the transition, and ask again.
//
// # Locks
//
// Each type guards its own fields with a mutex, which only its methods take; a Lease also takes
// that of its machine. The function that takes a mutex releases it. While a mutex is held,
// nothing calls the store, a runtime or a guest, and only a mutex further down in this order is
// taken:
//
//	machines.mu, pool.mu, layerKeeper.mu
//	machine.mu
//	places.mu, tasks.mu, diskGauge.mu, diskWatch.mu, diskRoom.mu, reads.mu
//
// A callback that the store calls while it updates a row (rows.note) may take machines.mu, and
// then the mutex of a machine. Some locks are held for long, and are taken before any mutex. Their order is:
// network.setting, limiter.changing, checkpoints.wanting, layerKeeper.merging and reads.listed
// (each by a key); layerKeeper.collecting; layerKeeper.referencing.
package sprite
